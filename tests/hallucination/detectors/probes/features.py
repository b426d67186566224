"""Answers in memory, for cases that no store would contain."""

from collections.abc import Mapping
from typing import Any

import numpy as np

SPLITS = ("train", "validation", "test")


class MemoryFeatures:
    """As `AnswerFeatures` reads them; `values` has the rows of all splits."""

    def __init__(self, labels: np.ndarray, values: Mapping[str, Any]) -> None:
        ends = [int(share * len(labels)) for share in (0, 0.6, 0.8, 1)]
        places = zip(SPLITS, ends[:-1], ends[1:], strict=True)
        self._rows = {split: slice(start, end) for split, start, end in places}
        self._values = dict(values)
        self.labels = {split: labels[rows].astype(np.int8) for split, rows in self._rows.items()}
        self.fields = frozenset(values)
        self.without_attention: tuple[int, ...] = ()

    @property
    def layers(self) -> int:
        return next(v.shape[1] for v in self._values.values() if isinstance(v, np.ndarray))

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:
        values = self._values[field][self._rows[split]]
        if not isinstance(values, np.ndarray):
            return values
        return (values if layer is None else values[:, layer]).astype(np.float32)


def telling_states(answers: int, layers: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and states of which only layer 1 reveals them."""
    random = np.random.default_rng(0)
    labels = (random.random(answers) < 0.4).astype(np.int8)
    states = random.standard_normal((answers, layers, dim)).astype(np.float16)
    states[:, 1, :3] += labels[:, None].astype(np.float16)
    return labels, states
