"""The built-in reader as a detection method of comparisons, beside probes and baselines."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from time import perf_counter

import numpy as np

from clew.hallucination.detectors.probes.method import Features, Fitted, Method, Scorer, Scores
from clew.hallucination.grounded.passages import GroundedAnswer, find_problem
from clew.hallucination.grounded.reader import Reader, load_reader
from clew.hallucination.traces.schema import CONTEXT

_NEEDS = ("question", CONTEXT, "answer")
_MOST_KEPT = 50_000
# The places `[tokens, 2]` of the tokens of an answer, and their logits.
ReadTokens = tuple[np.ndarray, np.ndarray]


@dataclass(eq=False)
class ReaderScore(Scorer):
    """The logit that a part of an answer is not supported by its source."""

    reads = _NEEDS
    spared_seconds: float = 0.0

    def score(self, data: Features, split: str) -> Scores:
        read, self.spared_seconds = _read(data, split)
        return _load().settings.pool([logits for _, logits in read])


def read_tokens(data: Features, split: str) -> list[ReadTokens]:
    """What the reader finds in each answer of a split: no tokens if it cannot be read."""
    return _read(data, split)[0]


def _read(data: Features, split: str) -> tuple[list[ReadTokens], float]:
    """Each answer is read once, though folds and tables need it again: with the seconds that this
    spared."""
    texts = zip(*(data.read(name, split) for name in _NEEDS), strict=True)
    rows = [
        GroundedAnswer(answer=answer or "", sources=(context or "",), question=question or None)
        for question, context, answer in texts
    ]
    return _kept(_load()).read(rows)


class _KeptReadings:
    """What was read, of as many answers as fit in little memory."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._found: dict[GroundedAnswer, ReadTokens] = {}
        self._seconds = self._count = 0.0

    def read(self, rows: Sequence[GroundedAnswer]) -> tuple[list[ReadTokens], float]:
        missing = [row for row in dict.fromkeys(rows) if row not in self._found]
        if len(self._found) + len(missing) > _MOST_KEPT:
            self._found, missing = {}, list(dict.fromkeys(rows))
        self._add([row for row in missing if find_problem(row) is None])
        nothing = np.zeros((0, 2), np.int32), np.zeros(0, np.float32)
        spared = self._seconds / max(1, self._count) * (len(rows) - len(missing))
        return [self._found.get(row, nothing) for row in rows], spared

    def _add(self, rows: list[GroundedAnswer]) -> None:
        start = perf_counter()
        read = self._reader.token_logits(rows)
        for row, (places, logits) in zip(rows, read, strict=True):
            self._found[row] = np.asarray(places, np.int32).reshape(-1, 2), logits
        self._seconds += perf_counter() - start
        self._count += len(rows)


@lru_cache(maxsize=1)
def _kept(reader: Reader) -> _KeptReadings:
    return _KeptReadings(reader)


@cache
def _load() -> Reader:
    return load_reader()


READER_METHOD = Method(
    "reader", "Grounded reader", "no training", _NEEDS, lambda _: Fitted(scorer=ReaderScore())
)
