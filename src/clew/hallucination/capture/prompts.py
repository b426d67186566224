"""From a question to the tokens that the model is given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clew.errors import InputError

PLACEHOLDER = "{question}"
CHAT_PROMPT = "{question}"
PLAIN_PROMPT = "Answer the question concisely. Q: {question} A:"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A template with {question} in it, put into the model's chat format when `chat`."""

    template: str
    chat: bool

    def fill(self, question: str) -> str:
        return self.template.replace(PLACEHOLDER, question)


def require_placeholder(template: str) -> None:
    """Raises InputError when the question would never reach the model."""
    if PLACEHOLDER not in template:
        raise InputError(
            f"it has no {PLACEHOLDER} in it, so the question would never reach the model. Write "
            f'for example "Q: {PLACEHOLDER} A:".',
            setting="prompt",
            value=template,
        )


def choose_prompt(
    tokenizer: Any, template: str | None, chat: bool | None, instruction: str = ""
) -> Prompt:
    """The user's template and format, or those that suit the model and the questions, which may
    come with an `instruction` of their own."""
    has_chat = bool(getattr(tokenizer, "chat_template", None))
    if chat and not has_chat:
        raise InputError(
            "this model's tokenizer has no chat template: use `chat=False`, or a model that was "
            "tuned for chat.",
            setting="chat",
            value=chat,
        )
    chat = has_chat if chat is None else chat
    own = f"{CHAT_PROMPT} {instruction}".strip() if chat else PLAIN_PROMPT
    return Prompt(template=template or own, chat=chat)


def tokenize_prompts(tokenizer: Any, prompt: Prompt, questions: Sequence[str]) -> list[list[int]]:
    """The token ids of every prompt, special tokens included as the model expects them."""
    texts = [prompt.fill(question) for question in questions]
    if prompt.chat:
        texts = [_in_chat_format(tokenizer, text) for text in texts]
    encoded = tokenizer(texts, add_special_tokens=not prompt.chat, return_attention_mask=False)
    return [list(ids) for ids in encoded["input_ids"]]


def shared_prefix(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all prompts begin with; every prompt keeps at least one of its own."""
    if len(prompts) < 2:
        return []
    # What the first and the last in dictionary order share, all share.
    first, last = min(map(tuple, prompts)), max(map(tuple, prompts))
    limit = min(len(prompt) for prompt in prompts) - 1
    length = 0
    while length < limit and first[length] == last[length]:
        length += 1
    return list(first[:length])


def _in_chat_format(tokenizer: Any, text: str) -> str:
    messages = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
