"""The text of a growing answer."""

import pytest

from clew.hallucination.llm.generation import GrowingText, StopTexts
from clew.hallucination.llm.prompts import Pieces
from tests.builders import tiny_tokenizer


@pytest.mark.parametrize("text", ["naïve café", "日本の首都は東京", "a 🎉 b", " leading", "\n\nx"])
def test_no_character_is_split(text: str) -> None:
    tokenizer = tiny_tokenizer()
    growing = GrowingText(Pieces(tokenizer))
    for token in tokenizer.encode(text):
        growing.add(token)
        assert text.startswith(growing.text)
    assert growing.text == text
    assert growing.ends[-1] == len(text)


def test_bytes_that_are_no_text_are_not_held_back_forever() -> None:
    tokenizer = tiny_tokenizer()
    half = tokenizer.encode("日")[0]
    growing = GrowingText(Pieces(tokenizer))
    for _ in range(12):
        growing.add(half)
    assert growing.text


def test_a_stop_text_is_found_across_pieces() -> None:
    stops = StopTexts(["END", "\n\n"])
    assert stops.find("some text EN", 10) is None
    assert stops.safe_length("some text EN") == 10
    assert stops.find("some text END", 12) == 10
    assert stops.safe_length("line\n") == 4
    assert stops.safe_length("line\nnext") == 9
    assert StopTexts([]).safe_length("END") == 3
