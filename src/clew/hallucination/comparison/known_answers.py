"""The known answers that a detector keeps, from the samples that it was fitted on."""

import numpy as np

from clew.hallucination.detectors.known import (
    KnownAnswers,
    KnownTexts,
    choose_known,
    fit_known,
)
from clew.hallucination.samples.answers import SEQUENCE, AnswerData
from clew.loading.splits import SPLIT_NAMES


def gather_known(features: AnswerData) -> KnownAnswers | None:
    """Some answers of all splits; None if the samples hold no states or no texts. A linear probe
    per layer is fitted, which takes a second per thousand answers of a small model."""
    if not {SEQUENCE, "question", "answer"} <= features.fields:
        return None
    labels = _join(features.labels).astype(np.float32)
    rows = choose_known(labels, features.layers, features.dim)
    if len(rows) < 2:
        return None
    texts = {
        name: [text for split in SPLIT_NAMES for text in features.read(name, split)]
        for name in ("question", "answer")
    }
    known = KnownTexts(
        numbers=_join(features.ids)[rows].astype(np.int64),
        questions=[texts["question"][row] or "" for row in rows],
        answers=[texts["answer"][row] or "" for row in rows],
        hallucinated=labels[rows],
    )

    def read_layer(layer: int) -> np.ndarray:
        parts = [features.read(SEQUENCE, split, layer=layer) for split in SPLIT_NAMES]
        return np.concatenate(parts)[rows]

    return fit_known(known, features.layers, read_layer)


def _join(by_split: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([by_split[split] for split in SPLIT_NAMES])
