"""The built-in reader as a detection method of comparisons, beside probes and baselines."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from clew.hallucination.detectors.probes.method import Features, Fitted, Method, Scorer, Scores
from clew.hallucination.grounded.reader import (
    GroundedAnswer,
    Reader,
    find_problem,
    load_reader,
    pool_logits,
)
from clew.hallucination.traces.schema import CONTEXT

_NEEDS = ("question", CONTEXT, "answer")
# The score of an answer without a source, which the reader has nothing to say about.
_UNREAD = -30.0


@dataclass(frozen=True)
class ReaderScore(Scorer):
    """The logit that a part of an answer is not supported by its source."""

    reads = _NEEDS

    def score(self, data: Features, split: str) -> Scores:
        texts = zip(*(data.read(name, split) for name in _NEEDS), strict=True)
        rows = [
            GroundedAnswer(answer=answer or "", sources=(context or "",), question=question or None)
            for question, context, answer in texts
        ]
        readable = [number for number, row in enumerate(rows) if find_problem(row) is None]
        reader, scores = _load(), np.full(len(rows), _UNREAD, np.float32)
        found = reader.token_logits([rows[number] for number in readable])
        logits = [one for _, one in found]
        scores[readable] = pool_logits(logits, reader.settings.smoothing)
        return scores


@cache
def _load() -> Reader:
    return load_reader()


READER_METHOD = Method(
    "reader",
    "Grounded reader",
    "no training",
    _NEEDS,
    lambda _: Fitted(scorer=ReaderScore()),
)
