"""Where answers end."""

import pytest

from clew.hallucination.capture.stopping import AnswerEnd, Cut, ends_sentence, repetition_start
from tests.builders import tiny_tokenizer


@pytest.mark.parametrize(
    "text", ["It is Paris.", "Is it Paris?", 'He said "no."', "It was in 1999.", "(See above.)"]
)
def test_a_sentence_ends(text: str) -> None:
    assert ends_sentence(text)


@pytest.mark.parametrize(
    "text", ["It is in St.", "J. R.", "Mr.", "the U.S.", "Washington D.C.", "It is", "", "No."]
)
def test_an_abbreviation_ends_no_sentence(text: str) -> None:
    assert not ends_sentence(text)


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ([1, 2, 3, 1, 2, 3, 1, 2, 3], 3),
        ([9, 1, 2, 1, 2, 1, 2], 3),
        ([7, 7, 7, 7, 7, 7], 1),
        ([7, 7, 7, 7, 7], None),
        ([1, 2, 3, 1, 2, 3], None),
        ([1, 2, 3], None),
        ([], None),
    ],
)
def test_what_is_said_three_times_is_kept_once(answer: list[int], kept: int | None) -> None:
    assert repetition_start(answer) == kept


def test_the_zeros_of_a_large_number_are_no_repetition() -> None:
    tokenizer = tiny_tokenizer()
    end = AnswerEnd(tokenizer, "sentence", [0])
    assert end.repeats(tokenizer.encode("1,000,000,000,000")) is None
    assert end.repeats([*tokenizer.encode("It is"), *tokenizer.encode(" in") * 6]) is not None


@pytest.mark.parametrize(
    ("cut", "expected"), [("sentence", "sentence"), ("line", None), ("none", None)]
)
def test_the_cut_decides(cut: Cut, expected: str | None) -> None:
    tokenizer = tiny_tokenizer()
    end = AnswerEnd(tokenizer, cut, [0])
    answer = tokenizer.encode("It is Paris.")
    assert end.before(answer, tokenizer.encode(" The")[0]) == expected
    assert end.before(answer, 0) == "end"
    newline = end.before(answer, tokenizer.encode("\n")[0])
    assert newline == (None if cut == "none" else "line")
    assert end.before([], tokenizer.encode("\n")[0]) is None
