"""Answers given as text get the tokens that the model would have generated."""

from typing import Any

import pytest

from clew.base.errors import InputError
from clew.hallucination.llm.prompts import Encoder, Prompt
from tests.builders import tiny_tokenizer

TURNS = "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}\n{% endfor %}"
SPACED = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {% endif %}{% endfor %}"
)


def make_encoder(template: str = "Q: {question} A:", chat_template: str | None = None) -> Encoder:
    tokenizer = tiny_tokenizer()
    ready = "{% if add_generation_prompt %}<assistant>\n{% endif %}"
    if chat_template == TURNS:
        chat_template += ready
    tokenizer.chat_template = chat_template
    prompt = Prompt(template=template, chat=chat_template is not None)
    return Encoder(tokenizer, prompt, max_tokens=200)


@pytest.mark.parametrize(
    ("template", "chat_template", "before"),
    [
        ("Q: {question} A:", None, " "),
        ("Q: {question}\nA: ", None, ""),
        ("{question}", TURNS, ""),
        ("{question}", SPACED, " "),
    ],
)
def test_an_answer_gets_the_space_that_the_model_generates(
    template: str, chat_template: str | None, before: str
) -> None:
    encoder = make_encoder(template, chat_template)
    [tokens] = encoder.encode_answers(["Paris is the capital"])
    assert encoder.tokenizer.decode(tokens) == f"{before}Paris is the capital"
    whole = encoder.tokenizer.decode([*encoder.encode("Where?"), *tokens])
    assert whole.endswith(f"{before}Paris is the capital")


def test_a_conversation_is_encoded_with_the_chat_template() -> None:
    encoder = make_encoder("{question}", TURNS)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    assert encoder.tokenizer.decode(encoder.encode_messages(messages)).endswith("<assistant>\n")
    asked = encoder.encode_messages([{"role": "user", "content": "Hi"}])
    assert asked == encoder.encode("Hi")


def test_a_text_that_is_far_too_long_is_not_tokenized_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder, long = make_encoder("{question}", TURNS), "x y " * 100_000
    most, tokenize = 0, type(encoder.tokenizer).__call__

    def count(self: Any, text: Any, **options: Any) -> Any:
        nonlocal most
        most = max(most, *map(len, [text] if isinstance(text, str) else text))
        return tokenize(self, text, **options)

    monkeypatch.setattr(type(encoder.tokenizer), "__call__", count)
    reason = "characters, and the first 16,384 alone have .* limit is 200: shorten it"
    with pytest.raises(InputError, match=f"the prompt has 400,000 {reason}"):
        encoder.encode_text(long)
    with pytest.raises(InputError, match=f"the conversation has 400,.* {reason}"):
        encoder.encode_messages([{"role": "user", "content": long}])
    [tokens] = encoder.encode_answers([long])
    assert len(tokens) > encoder.max_tokens
    assert 0 < most < 20_000


def test_a_model_without_chat_template_answers_one_message() -> None:
    encoder = make_encoder()
    assert encoder.encode_messages([{"role": "user", "content": "x"}]) == encoder.encode("x")
    with pytest.raises(InputError, match="no chat template"):
        encoder.encode_messages([{"role": "system", "content": "x"}])


def test_a_prompt_beyond_the_limit_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match=r"has 605 tokens.* is 200"):
        make_encoder().encode("a b " * 150)
