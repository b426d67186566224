"""How much the rows of a file take. A file of a few bytes can refer to one array a million times:
every reference counts."""

import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from clew.hallucination.legacy.budget import Budget
from clew.hallucination.legacy.records import MAX_LAYERS, MalformedRecordError, is_list
from clew.hallucination.legacy.sample_rows import read_graph_fields
from clew.hallucination.legacy.trace_rows import KNOWN_FIELDS, NODE_DIM

_RECORD_BYTES, _ARRAY_BYTES, _ITEM_BYTES = 1000, 2000, 64
# To convert a record takes copies of it, and of its largest array in float32.
_COPIES, _COPIES_OF_LARGEST = 4, 16
# The mean and the components of a layer, in float32, and a copy while they are fitted.
_BASIS_BYTES = 2 * 4 * (NODE_DIM + 1)
_LAYER_FIELDS = ("hidden_states", "attentions")


def check_rows(samples: Iterable[Any], budget: Budget) -> None:
    """Raises OverBudgetError if the rows of all samples together take more than the file may, or if
    converting one of them takes more than is left."""
    total = Budget(budget.path, budget.limit)
    for sample in samples:
        parts = _find_parts(sample)
        sizes = [part.nbytes for part in parts if isinstance(part, np.ndarray)]
        rest = _RECORD_BYTES + _ITEM_BYTES * len(parts) + _ARRAY_BYTES * len(sizes)
        rest += sum(sys.getsizeof(part) for part in parts if isinstance(part, str))
        total.take(rest + sum(sizes))
        largest = _COPIES_OF_LARGEST * max(sizes, default=0)
        budget.check(rest + _COPIES * sum(sizes) + largest + _measure_basis(sample))


def _find_parts(sample: Any) -> list[Any]:
    """The arrays, texts and other values of a sample that rows are made of."""
    if not isinstance(sample, Mapping):
        return []
    fields = [*KNOWN_FIELDS, "content", "label"]
    parts: list[Any] = []
    for value in (_find_layers(sample, name) for name in fields):
        parts += value if isinstance(value, list | tuple) else [value]
    return [inner for part in parts for inner in _find_graph_parts(part)]


def _find_layers(sample: Mapping[str, Any], name: str) -> Any:
    """The value of a field; a stacked array is several arrays."""
    value = sample.get(name)
    if name in _LAYER_FIELDS and isinstance(value, np.ndarray) and value.ndim > 0:
        return list(islice(value, MAX_LAYERS))
    return value


def _find_graph_parts(part: Any) -> list[Any]:
    try:
        fields = read_graph_fields(part)
    except MalformedRecordError:
        return [part]
    return [*fields.values()]


def _measure_basis(sample: Any) -> int:
    hidden: Any = sample.get("hidden_states") if isinstance(sample, Mapping) else None
    layers = islice(hidden, MAX_LAYERS) if is_list(hidden) else ()
    shapes = (layer.shape for layer in layers if isinstance(layer, np.ndarray))
    return _BASIS_BYTES * sum(shape[-1] for shape in shapes if shape)
