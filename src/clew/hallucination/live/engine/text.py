"""The text of an answer while it grows, and the texts that stop it."""

from collections.abc import Sequence
from typing import Any

_BROKEN = "\ufffd"
# A character has at most four bytes, and a token at least one.
_MOST_TOKENS_OF_A_CHARACTER = 4


class Pieces:
    """The text that tokens add to a text, kept per token."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._anchor = tokenizer.encode("a", add_special_tokens=False)
        self._anchor_text = tokenizer.decode(self._anchor)
        self._known: dict[int, str] = {}

    def whole(self, tokens: Sequence[int]) -> str:
        """The text of a whole answer."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def added(self, tokens: Sequence[int]) -> str:
        """What tokens add in the middle of a text, leading space included."""
        if len(tokens) > 1:
            return self._decode(tokens)
        if tokens[0] not in self._known:
            self._known[tokens[0]] = self._decode(tokens)
        return self._known[tokens[0]]

    def _decode(self, tokens: Sequence[int]) -> str:
        text = self._tokenizer.decode([*self._anchor, *tokens], skip_special_tokens=True)
        return str(text[len(self._anchor_text) :])


class GrowingText:
    """The text of an answer, token by token. A character of several tokens is added with its last
    one. `ends[i]` is the length of the text after token i."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._pending: list[int] = []
        self.text = ""
        self.ends: list[int] = []

    def add(self, token: int) -> None:
        self._pending.append(token)
        if self.text:
            piece = self._pieces.added(self._pending)
        else:  # some tokenizers drop the space that a text starts with
            piece = self._pieces.whole(self._pending)
        is_whole = not piece.endswith(_BROKEN)
        if is_whole or len(self._pending) >= _MOST_TOKENS_OF_A_CHARACTER:
            self.text += piece
            self._pending.clear()
        self.ends.append(len(self.text))

    def start_of(self, token: int) -> int:
        """Where the text of a token starts."""
        return self.ends[token - 1] if token else 0


class StopTexts:
    """Texts that end an answer."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = [text for text in texts if text]
        self._longest = max(map(len, self._texts), default=0)
        self._firsts = {text[0] for text in self._texts}

    def find(self, text: str, known: int) -> int | None:
        """Where the first of them starts; none does in the first `known` characters alone."""
        start = max(0, known - self._longest + 1)
        found = [at for stop in self._texts if (at := text.find(stop, start)) >= 0]
        return min(found, default=None)

    def safe_length(self, text: str) -> int:
        """How much of the text cannot be the beginning of one of them."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._firsts and self._may_begin(text[start:]):
                return start
        return len(text)

    def _may_begin(self, rest: str) -> bool:
        return any(stop.startswith(rest) for stop in self._texts)
