"""Traces (what is captured for one answer): their columns, and the loader that reads them from a
store."""

from clew.hallucination.traces.loader import (
    Trace,
    TraceBatchLoader,
    extract_batch_subset,
    merge_batches,
)
from clew.hallucination.traces.schema import TraceShape, trace_schema

__all__ = [
    "Trace",
    "TraceBatchLoader",
    "TraceShape",
    "extract_batch_subset",
    "merge_batches",
    "trace_schema",
]
