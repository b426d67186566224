"""Questions, conversations and given answers as token ids: the prompts of a detector's training
answers, and answers as the model itself would have generated them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clew.base.errors import InputError
from clew.hallucination.capture.dialogue import (
    PLACEHOLDER,
    Prompt,
    PromptTokenizer,
    find_excess,
    format_chat,
)

_PROBE = "answer"


class PromptTooLongError(InputError):
    """A prompt has more tokens than the model takes."""


class Encoder:
    """Turns texts into the token ids that a model with this prompt reads and generates;
    `max_tokens` is the model's limit."""

    def __init__(self, tokenizer: Any, prompt: Prompt, max_tokens: int) -> None:
        self.tokenizer, self.prompt, self.max_tokens = tokenizer, prompt, max_tokens
        self._prompts = PromptTokenizer(tokenizer, prompt, max_tokens)
        self._before, self._gap = self._find_border()
        self._before_ids = self._tokenize([self._before])[0] if self._before else []

    def encode(self, question: str, context: str | None = None) -> list[int]:
        """The prompt of a question. Raises InputError if it is too long."""
        [tokens] = self.encode_prompts([question], [context])
        if isinstance(tokens, str):
            raise PromptTooLongError(f"the question cannot be asked: {tokens}.")
        return tokens

    def encode_prompts(
        self, questions: Sequence[str], contexts: Sequence[str | None]
    ) -> Iterator[list[int] | str]:
        """The prompts of questions; the reason instead of one that is certainly too long."""
        for tokens in self._prompts.tokenize(questions, contexts):
            if isinstance(tokens, list) and len(tokens) >= self.max_tokens:
                yield (
                    f"its prompt has {len(tokens):,} tokens, but the model's limit for prompt and "
                    f"answer is {self.max_tokens:,}: shorten it"
                )
            else:
                yield tokens

    def encode_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """A conversation, ready for the next answer. A model without a chat template gets a single
        user message in the detector's prompt. Raises InputError for a conversation that it cannot
        read, or that is too long."""
        if getattr(self.tokenizer, "chat_template", None):
            whole = format_chat(self.tokenizer, messages)
            self._refuse_excess(whole, "the conversation")
            tokens = self._tokenize([whole])[0]
            if len(tokens) >= self.max_tokens:
                raise PromptTooLongError(
                    f"the messages have {len(tokens):,} tokens, but the model's limit for prompt "
                    f"and answer is {self.max_tokens:,}: shorten them."
                )
            return tokens
        if len(messages) != 1 or messages[0].get("role") != "user":
            raise InputError(
                "this model has no chat template: send one message with the role user. A system "
                "message or earlier turns require a chat model."
            )
        return self.encode(str(messages[0].get("content", "")))

    def encode_text(self, text: str) -> list[int]:
        """A text as it is, with the special tokens that the model expects. Raises InputError if it
        is far too long."""
        self._refuse_excess(text, "the prompt")
        return list(self.tokenizer.encode(text))

    def encode_answers(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of answers, as they follow the prompt: with the space that the model puts
        before them, without an end token. Of one that is far too long, only a beginning, which
        alone is too long."""
        spaced = [f"{self._gap}{self._without_excess(text)}" for text in texts]
        if not self._before_ids:
            return self._tokenize(spaced)
        whole = self._tokenize([f"{self._before}{text}" for text in spaced])
        alone = self._tokenize(spaced)
        border = len(self._before_ids)
        return [
            # A tokenizer may merge the answer's start with the prompt's end; generation cannot.
            joined[border:] if joined[:border] == self._before_ids else own
            for joined, own in zip(whole, alone, strict=True)
        ]

    def _refuse_excess(self, text: str, what: str) -> None:
        if found := find_excess(self.tokenizer, text, self.max_tokens):
            raise PromptTooLongError(f"{what} {found}.")

    def _without_excess(self, text: str) -> str:
        found = find_excess(self.tokenizer, text, self.max_tokens)
        return text[: found.characters] if found else text

    def _find_border(self) -> tuple[str, str]:
        """The text that every prompt ends with, and the space between it and an answer."""
        if not self.prompt.chat:
            end = self.prompt.template.rpartition(PLACEHOLDER)[2]
            return end, "" if end[-1:].isspace() else " "
        asked = [{"role": "user", "content": _PROBE}]
        ready = format_chat(self.tokenizer, asked)
        whole = format_chat(
            self.tokenizer, [*asked, {"role": "assistant", "content": _PROBE}], generate=False
        )
        gap = ""
        if whole.startswith(ready):
            gap = whole[len(ready) :].partition(_PROBE)[0]
        return ready.rpartition(_PROBE)[2], gap if gap.isspace() else ""

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        encoded = self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
        return [list(ids) for ids in encoded["input_ids"]]
