"""Beginnings that several prompts share (a system message, an instruction, earlier turns): their
cache and record are kept, so that they are passed only once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from clew.hallucination.live.engine.rows import CachedTokens

_MIN_TOKENS = 8
_MAX_KEPT_TOKENS = 4096
_RECENT_PROMPTS = 32


@dataclass(frozen=True, kw_only=True)
class SharedPrefix:
    """The beginning of some prompts, as one row has passed it; `record` only if it was recorded."""

    tokens: list[int]
    cached: CachedTokens
    record: dict[str, Tensor] | None


@dataclass(kw_only=True)
class Prefixes:
    """The kept beginnings, those used last at the end."""

    kept: list[SharedPrefix] = field(default_factory=list)
    _recent: list[list[int]] = field(default_factory=list)

    def find(self, prompt: Sequence[int], *, recorded: bool) -> SharedPrefix | None:
        """The longest kept beginning of a prompt; at least one token of it is left to pass."""
        usable = (prefix for prefix in self.kept if prefix.record is not None or not recorded)
        fitting = [prefix for prefix in usable if _starts_with(prompt, prefix.tokens)]
        best = max(fitting, key=lambda prefix: len(prefix.tokens), default=None)
        if best is not None:
            self.kept.remove(best)
            self.kept.append(best)
        return best

    def length_to_keep(self, prompt: Sequence[int], others: Iterable[Sequence[int]]) -> int:
        """How many first tokens this prompt shares with others or with recent ones, if they are
        enough to be kept; else 0."""
        compared = [*self._recent, *others]
        self._recent = [*self._recent[1 - _RECENT_PROMPTS :], list(prompt)]
        longest = max((_shared(prompt, other) for other in compared), default=0)
        return longest if _MIN_TOKENS <= longest <= _MAX_KEPT_TOKENS else 0

    def keep(self, prefix: SharedPrefix) -> None:
        self.kept.append(prefix)
        while sum(len(kept.tokens) for kept in self.kept) > _MAX_KEPT_TOKENS:
            self.kept.pop(0)


def _starts_with(prompt: Sequence[int], tokens: Sequence[int]) -> bool:
    return len(tokens) < len(prompt) and list(prompt[: len(tokens)]) == tokens


def _shared(prompt: Sequence[int], other: Sequence[int]) -> int:
    """How many first tokens are equal, leaving one of each."""
    low, high = 0, min(len(prompt), len(other)) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if prompt[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
