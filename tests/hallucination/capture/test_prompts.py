"""What the model is given when the user says nothing: the question, in its own words."""

from types import SimpleNamespace

import pytest

from clew.errors import InputError
from clew.hallucination.capture.prompts import choose_prompt
from clew.hallucination.questions.facts import load_facts

CHAT = SimpleNamespace(chat_template="{{ messages }}")
PLAIN = SimpleNamespace(chat_template=None)


def test_a_chat_model_is_told_what_form_of_answer_the_questions_want() -> None:
    prompt = choose_prompt(CHAT, None, None, "Answer in one word.")
    assert prompt.fill("Who?") == "Who? Answer in one word."
    assert choose_prompt(CHAT, None, None).fill("Who?") == "Who?"


def test_a_prompt_of_the_user_is_taken_as_it_is() -> None:
    prompt = choose_prompt(CHAT, "Say: {question}", None, "Answer in one word.")
    assert prompt.fill("Who?") == "Say: Who?"


def test_a_base_model_is_asked_to_complete() -> None:
    prompt = choose_prompt(PLAIN, None, None, "Answer in one word.")
    assert prompt.fill("Who?") == "Answer the question concisely. Q: Who? A:"
    with pytest.raises(InputError, match="no chat template"):
        choose_prompt(PLAIN, None, True)


def test_facts_ask_for_names() -> None:
    assert "name only" in load_facts(3).instruction
