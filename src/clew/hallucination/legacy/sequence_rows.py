"""Old sequences over layers as rows of a `sequences` store."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from clew.hallucination.legacy.records import MalformedRecordError
from clew.hallucination.legacy.sample_columns import (
    build_row,
    common_columns,
    common_fields,
    fill_lists,
    narrow,
)
from clew.hallucination.legacy.samples import RowIds
from clew.hallucination.traces.schema import shaped


class SequenceFormat:
    """Rows with `sequence`, a float16 array `[layers, dim]`, and its label."""

    kind = "sequences"

    def __init__(self, layers: int, dim: int) -> None:
        self.layers, self.dim = layers, dim
        self.notes: set[str] = set()
        kind = pa.list_(pa.list_(pa.float16(), dim), layers)
        self.schema = pa.schema([*common_fields(), shaped("sequence", kind, layers, dim)])

    @classmethod
    def fit(cls, samples: Sequence[Any]) -> "SequenceFormat":
        """The shape that most samples have."""
        shapes = Counter(shape for s in samples if (shape := _shape_of(s["content"])))
        if not shapes:
            _read_sequence(samples[0]["content"])
        return cls(*shapes.most_common(1)[0][0])

    @property
    def settings(self) -> dict[str, Any]:
        return {"shape": {"layers": self.layers, "dim": self.dim}}

    def save(self, _store: Path) -> dict[str, str]:
        """Nothing but its shards belongs to such a store."""
        return {}

    def row(self, sample: Mapping[str, Any], ids: RowIds) -> pa.RecordBatch:
        """One row; raises MalformedRecordError when the sample does not fit the store."""
        sequence = _read_sequence(sample["content"])
        if sequence.shape != (self.layers, self.dim):
            raise MalformedRecordError(
                f"its sequence has shape {list(sequence.shape)}, "
                f"the store has {[self.layers, self.dim]}"
            )
        columns = common_columns(sample, ids)
        columns["sequence"] = fill_lists(self.schema, "sequence", narrow(sequence, self.notes))
        return build_row(self.schema, columns)


def _read_sequence(content: Any) -> Float[np.ndarray, "layers dim"]:
    if _shape_of(content) is None:
        what = getattr(content, "shape", type(content).__name__)
        raise MalformedRecordError(f"its sequence is not an array [layers, dim] of floats ({what})")
    return content


def _shape_of(content: Any) -> tuple[int, int] | None:
    fits = isinstance(content, np.ndarray) and content.ndim == 2 and content.dtype.kind == "f"
    return content.shape if fits and content.size else None
