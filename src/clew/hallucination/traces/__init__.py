# ruff: noqa: F401 - the imports for type checkers
"""Traces (what is captured for one answer): their columns, and the loader that reads them from a
store. Names are imported lazily: the columns are known without the loader."""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names

if TYPE_CHECKING:  # the names of `_HOMES`
    from clew.hallucination.traces.loader import (
        Trace,
        TraceBatchLoader,
        extract_batch_subset,
        merge_batches,
    )
    from clew.hallucination.traces.schema import TraceShape, trace_schema

_HOMES = {
    **dict.fromkeys(
        ("Trace", "TraceBatchLoader", "extract_batch_subset", "merge_batches"), "loader"
    ),
    **dict.fromkeys(("TraceShape", "trace_schema"), "schema"),
}
__all__ = [*sorted(_HOMES)]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
