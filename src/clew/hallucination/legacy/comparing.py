"""Compare a pickle of the original tools with the traces of a store, field by field."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clew.hallucination.legacy.formats import as_float16
from clew.hallucination.legacy.reading import load_samples
from clew.hallucination.traces import Trace, TraceBatchLoader

_TEXTS = ("question", "accepted_answers", "answer", "tokens_decoded", "prompt_length", "tokens")


@dataclass(frozen=True, kw_only=True)
class FieldComparison:
    """How a field of the traces that are in both differs. `largest_difference` is that of arrays
    of the same shape, in the float16 of the store."""

    field: str
    compared: int
    equal: int
    largest_difference: float | None


@dataclass(frozen=True, kw_only=True)
class PickleComparison:
    """A pickle and a store: `found` of its `traces` are in the store, by question ID."""

    file: str
    bytes: int
    traces: int
    found: int
    unreadable: int
    fields: list[FieldComparison]


def compare_pickle(file: Path, store: Path) -> PickleComparison:
    """Compare the traces of a .pkl or .pkl.gz file with those of a store. Nothing in the file is
    executed. Raises InputError if it cannot be read, StoreError if there is no trace store."""
    loader = TraceBatchLoader(store)
    records = load_samples(file, "pickle")
    places = _find_places(loader)
    found = unreadable = 0
    differences: dict[str, list[float]] = defaultdict(list)
    for old in records:
        if "reason" in old:
            unreadable += 1
            continue
        trace = _find_trace(loader, places.get(str(old.get("question_id")), []), old)
        if trace is not None:
            found += 1
            for name, difference in _compare(old, trace):
                differences[name].append(difference)
    return PickleComparison(
        file=f"{file}",
        bytes=file.stat().st_size,
        traces=len(records),
        found=found,
        unreadable=unreadable,
        fields=[_sum_up(name, values) for name, values in differences.items()],
    )


def _find_places(loader: TraceBatchLoader) -> dict[str, list[int]]:
    """The IDs of the traces of each question."""
    places: dict[str, list[int]] = defaultdict(list)
    for trace in loader:
        places[trace["question_id"]].append(trace["global_example_id"])
    return places


def _find_trace(loader: TraceBatchLoader, ids: list[int], old: dict[str, Any]) -> Trace | None:
    """The trace with the same tokens, or else the first of the question."""
    traces = [trace for one in ids if (trace := loader.get_trace_by_global_id(one)) is not None]
    same = (trace for trace in traces if np.array_equal(trace["tokens"], old["tokens"]))
    return next(same, traces[0] if traces else None)


def _compare(old: dict[str, Any], trace: Trace) -> Iterator[tuple[str, float]]:
    """The largest difference of each field that both have: 0 if it is equal, NaN if there is no
    number for it."""
    for name in _TEXTS:
        ours, theirs = trace.get(name), old[name]
        if ours is not None and theirs is not None:
            yield name, 0.0 if np.array_equal(ours, theirs) else np.nan
    hidden, attentions = as_float16(old["hidden_states"]), as_float16(old["attentions"])
    arrays = {"hidden_states": hidden, "attentions": attentions, "last_hidden": hidden[:, -1]}
    for name, theirs in arrays.items():
        if trace.get(name) is not None:
            yield name, _largest_difference(trace[name], theirs)


def _largest_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    if ours.shape != theirs.shape:
        return np.nan
    if np.array_equal(ours, theirs, equal_nan=True):
        return 0.0
    return float(np.abs(ours.astype(np.float32) - theirs.astype(np.float32)).max())


def _sum_up(field: str, differences: list[Any]) -> FieldComparison:
    known = [difference for difference in differences if not np.isnan(difference)]
    return FieldComparison(
        field=field,
        compared=len(differences),
        equal=differences.count(0.0),
        largest_difference=None if field in _TEXTS or not known else max(known),
    )
