"""The prompt of a question, and where an answer ends."""

from types import SimpleNamespace
from typing import Any

import pytest

from clew.base.errors import InputError
from clew.hallucination.llm.prompts import (
    AnswerEnd,
    Cut,
    Encoder,
    Prompt,
    choose_prompt,
    ends_sentence,
    repetition_start,
)
from clew.hallucination.questions import load_questions
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


@pytest.mark.parametrize("model", [CHAT, PLAIN])
def test_context_comes_before_the_question(model: Any) -> None:
    prompt = choose_prompt(model, None, None, with_context=True)
    asked = prompt.fill("Who {context}?", "Ann did {question}.")
    assert asked.startswith("Ann did {question}.\n\nUse only the text above")
    assert "Who {context}?" in asked
    assert prompt.fill("Who?") == choose_prompt(model, None, None).fill("Who?")


def test_user_prompt_places_the_context() -> None:
    prompt = choose_prompt(PLAIN, "Q: {question} Text: {context} A:", None, with_context=True)
    assert prompt.fill("Who?", "Ann did.") == "Q: Who? Text: Ann did. A:"
    assert prompt.fill("Who?") == "Answer the question concisely. Q: Who? A:"
    with pytest.raises(InputError, match="no question has a context"):
        choose_prompt(PLAIN, "{context} {question}", None)


def test_prompt_without_contexts_is_described_as_before() -> None:
    plain = Prompt(template="{question}", chat=True)
    assert plain.describe() == {"template": "{question}", "chat": True}


def test_the_chat_template_is_part_of_the_prompt() -> None:
    hashes = {
        choose_prompt(SimpleNamespace(chat_template=template), None, chat).chat_template_sha256
        for template, chat in (("{{ a }}", True), ("{{ b }}", True), ({"default": "{{ a }}"}, True))
    }
    assert len(hashes) == 3 and None not in hashes
    assert choose_prompt(CHAT, None, False).chat_template_sha256 is None


class CountingTokenizer:
    """Counts the characters that it is given at once."""

    def __init__(self) -> None:
        self.tokenizer, self.most, self.total = tiny_tokenizer(), 0, 0

    def __call__(self, text: str | list[str], **options: Any) -> Any:
        characters = len(text) if isinstance(text, str) else sum(map(len, text))
        self.most, self.total = max(self.most, characters), self.total + characters
        return self.tokenizer(text, **options)


def test_question_that_is_far_too_long_is_excluded_without_tokenizing_it() -> None:
    tokenizer, prompt = CountingTokenizer(), Prompt(template="Q: {question}", chat=False)
    found = Encoder(tokenizer, prompt, max_tokens=2048).tokenize(
        ["who?", "x y " * 1_000_000, "what?"]
    )
    first, reason, last = found
    assert first == tiny_tokenizer()("Q: who?")["input_ids"]
    assert last == tiny_tokenizer()("Q: what?")["input_ids"]
    assert isinstance(reason, str)
    assert "it has 4,000,000 characters, and the first 16,384 alone have" in reason
    assert "the model's limit is 2,048" in reason
    assert tokenizer.total < 50_000


def test_context_that_is_far_too_long_is_named_as_the_reason() -> None:
    tokenizer, prompt = CountingTokenizer(), Prompt(template="Q: {question}", chat=False)
    found = Encoder(tokenizer, prompt, max_tokens=2048).tokenize(
        ["who?", "who?"], [None, "x y " * 1_000_000]
    )
    first, reason = found
    assert first == tiny_tokenizer()("Q: who?")["input_ids"]
    assert "its context has 4,000,000 characters, and the first 16,384 alone" in str(reason)
    assert tokenizer.total < 50_000


def test_question_that_may_fit_is_tokenized_whole() -> None:
    text = "x y " * 10_000
    tokens = tiny_tokenizer()(text)["input_ids"]
    prompt = Prompt(template="{question}", chat=False)
    found = Encoder(tiny_tokenizer(), prompt, max_tokens=len(tokens)).tokenize([text])
    assert list(found) == [tokens]


def test_many_questions_are_tokenized_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.hallucination.llm.prompts._CHARACTERS_AT_ONCE", 1000)
    prompt = Prompt(template="Q: {question} {question} A:", chat=False)
    tokenizer = CountingTokenizer()
    texts = ["who?"] * 500
    found = list(Encoder(tokenizer, prompt, max_tokens=65_535).tokenize(texts))
    assert len(found) == 500
    assert tokenizer.most == 990


def test_prompt_that_is_too_long_itself_excludes_every_question() -> None:
    prompt = Prompt(template="x y " * 10_000 + "{question}", chat=False)
    (reason,) = Encoder(tiny_tokenizer(), prompt, max_tokens=100).tokenize(["who?"])
    assert "the prompt alone exceeds the model's limit of 100 tokens" in str(reason)


@pytest.mark.slow
def test_facts_instruct_the_model_to_answer_with_a_name() -> None:
    assert "name only" in load_questions("facts").instruction


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
