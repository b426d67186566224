"""The prompt of a question, and where an answer ends."""

from types import SimpleNamespace

import pytest

from clew.errors import InputError
from clew.hallucination.capture.dialogue import (
    AnswerEnd,
    Cut,
    choose_prompt,
    ends_sentence,
    repetition_start,
)
from clew.hallucination.questions.facts import load_facts
from tests.builders import tiny_tokenizer

CHAT = SimpleNamespace(chat_template="{{ messages }}")
PLAIN = SimpleNamespace(chat_template=None)


def test_chat_prompt_includes_the_instruction_of_the_questions() -> None:
    prompt = choose_prompt(CHAT, None, None, "Answer in one word.")
    assert prompt.fill("Who?") == "Who? Answer in one word."
    assert choose_prompt(CHAT, None, None).fill("Who?") == "Who?"


def test_user_prompt_is_used_unchanged() -> None:
    prompt = choose_prompt(CHAT, "Say: {question}", None, "Answer in one word.")
    assert prompt.fill("Who?") == "Say: Who?"


def test_base_model_gets_a_completion_prompt() -> None:
    prompt = choose_prompt(PLAIN, None, None, "Answer in one word.")
    assert prompt.fill("Who?") == "Answer the question concisely. Q: Who? A:"
    with pytest.raises(InputError, match="no chat template"):
        choose_prompt(PLAIN, None, True)


@pytest.mark.slow
def test_facts_instruct_the_model_to_answer_with_a_name() -> None:
    assert "name only" in load_facts(3).instruction


@pytest.mark.parametrize(
    "text", ["It is Paris.", "Is it Paris?", 'He said "no."', "It was in 1999.", "(See above.)"]
)
def test_end_of_a_sentence_is_detected(text: str) -> None:
    assert ends_sentence(text)


@pytest.mark.parametrize(
    "text", ["It is in St.", "J. R.", "Mr.", "the U.S.", "Washington D.C.", "It is", "", "No."]
)
def test_abbreviation_does_not_end_a_sentence(text: str) -> None:
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
def test_text_repeated_three_times_is_kept_once(answer: list[int], kept: int | None) -> None:
    assert repetition_start(answer) == kept


def test_zeros_of_a_large_number_are_not_a_repetition() -> None:
    tokenizer = tiny_tokenizer()
    end = AnswerEnd(tokenizer, "sentence", [0])
    assert end.repeats(tokenizer.encode("1,000,000,000,000")) is None
    assert end.repeats([*tokenizer.encode("It is"), *tokenizer.encode(" in") * 6]) is not None


@pytest.mark.parametrize(
    ("cut", "expected"), [("sentence", "sentence"), ("line", None), ("none", None)]
)
def test_finish_reason_follows_from_the_cut(cut: Cut, expected: str | None) -> None:
    tokenizer = tiny_tokenizer()
    end = AnswerEnd(tokenizer, cut, [0])
    answer = tokenizer.encode("It is Paris.")
    assert end.before(answer, tokenizer.encode(" The")[0]) == expected
    assert end.before(answer, 0) == "end"
    newline = end.before(answer, tokenizer.encode("\n")[0])
    assert newline == (None if cut == "none" else "line")
    assert end.before([], tokenizer.encode("\n")[0]) is None
