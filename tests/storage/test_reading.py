"""JSON from somebody else takes memory in proportion to its size."""

import pytest

from clew.storage.reading import parse_json


@pytest.mark.parametrize("unit", ["[],", "{},", '"a",', "1,"])
def test_millions_of_tiny_values_are_refused(unit: str) -> None:
    content = f"[{unit * 4_500_000}0]"
    for given in (content, content.encode()):
        with pytest.raises(ValueError, match="it contains .* values in"):
            parse_json(given)


def test_large_table_of_numbers_is_read() -> None:
    rows = parse_json("[" + ",".join(["[" + "0," * 999 + "0]"] * 1000) + "]")
    assert len(rows) == len(rows[0]) == 1000
