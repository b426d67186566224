"""JSON from somebody else takes memory in proportion to its size."""

import pytest

from clew.storage.reading import parse_json


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["[],", "{},", '"a",', "1,"])
def test_millions_of_tiny_values_are_refused(unit: str) -> None:
    content = f"[{unit * 4_500_000}0]"
    for given in (content, content.encode()):
        with pytest.raises(ValueError, match="it contains .* values in"):
            parse_json(given)


@pytest.mark.parametrize("finite", [True, False])
def test_integer_of_many_digits_is_refused_in_plain_words(finite: bool) -> None:
    for content in ("9" * 5000, '{"a": [-' + "9" * 5000 + "]}"):
        with pytest.raises(ValueError, match=r"^it contains a number of more than 4,300 digits$"):
            parse_json(content, finite=finite)
    assert parse_json("9" * 4000) == int("9" * 4000)


@pytest.mark.slow
def test_large_table_of_numbers_is_read() -> None:
    rows = parse_json("[" + ",".join(["[" + "0," * 999 + "0]"] * 1000) + "]")
    assert len(rows) == len(rows[0]) == 1000
