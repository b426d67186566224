"""What reaches a terminal: counts that read right, texts without control characters."""

import json

import pytest

from clew.cli.formats import bytes_text, count_text, plain_text


@pytest.mark.parametrize(
    ("count", "nouns", "text"),
    [
        (1, ("trace",), "1 trace"),
        (0, ("trace",), "0 traces"),
        (1200, ("batch", "batches"), "1,200 batches"),
        (1, ("batch", "batches"), "1 batch"),
    ],
)
def test_counts(count: int, nouns: tuple[str, ...], text: str) -> None:
    assert count_text(count, *nouns) == text


def test_one_byte() -> None:
    assert (bytes_text(1), bytes_text(999), bytes_text(1000)) == ("1 byte", "999 bytes", "1.0 kB")


def test_control_characters_are_spelled_out() -> None:
    assert plain_text("\x1b]0;hi\x07 \x9b2J \r\x7f\udcff") == (
        r"\u001b]0;hi\u0007 \u009b2J \u000d\u007f\udcff"
    )
    assert plain_text("naïve 日本\tü") == "naïve 日本\tü"


def test_newlines_stay_only_where_they_are_meant() -> None:
    assert plain_text("a\nb") == r"a\nb"
    assert plain_text("a\nb", lines=True) == "a\nb"


def test_json_stays_json() -> None:
    text = json.dumps({"a": "\x9b\x1b\n"}, indent=1, ensure_ascii=False)
    assert json.loads(plain_text(text, lines=True)) == {"a": "\x9b\x1b\n"}
