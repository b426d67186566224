"""Known answers from a trace store, where the server was started with one."""

import numpy as np

from clew.hallucination.detectors.similar_answers import (
    KnownAnswers,
    KnownTexts,
    choose_known,
    fit_known,
)
from clew.hallucination.live.page.index import AnswerIndex
from clew.hallucination.traces import TraceBatchLoader


def gather_known(loader: TraceBatchLoader, index: AnswerIndex) -> KnownAnswers | None:
    """Read the states of some answers and fit the probes; None if the store has no states."""
    first = loader.get_batch(0)[0].get("last_hidden")
    if first is None:
        return None
    rows, states = [], []
    for row in choose_known(index.hallucinated, *first.shape).tolist():
        trace = loader.get_trace_by_global_id(int(index.numbers[row]))
        value = None if trace is None else trace.get("last_hidden")
        if value is not None and np.isfinite(value).all():
            rows.append(row)
            states.append(np.array(value))
    if len(rows) < 2:
        return None
    texts = KnownTexts(
        numbers=index.numbers[rows],
        questions=[text or "" for text in index.texts.column("question").take(rows).to_pylist()],
        answers=[text or "" for text in index.texts.column("answer").take(rows).to_pylist()],
        hallucinated=index.hallucinated[rows],
    )
    return fit_known(texts, len(first), lambda layer: np.stack([one[layer] for one in states]))
