"""The three kinds of rows behind one interface, chosen from the first file or from a store."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from clew.errors import InputError
from clew.hallucination.legacy.records import MalformedRecordError, RowIds
from clew.hallucination.legacy.sample_rows import GraphFormat, SequenceFormat
from clew.hallucination.legacy.trace_rows import TraceFormat
from clew.hallucination.traces.schema import Keep


class Format(Protocol):
    """How samples of one kind become rows."""

    kind: str
    schema: pa.Schema
    notes: set[str]

    @property
    def settings(self) -> dict[str, Any]: ...

    def save(self, store: Path, /) -> dict[str, str]: ...

    def row(self, sample: Any, ids: RowIds) -> pa.RecordBatch: ...


def fit_format(kind: str, samples: Sequence[Any], keep: Keep, path: Path) -> Format:
    try:
        if kind == "traces":
            return TraceFormat.fit(samples, keep)
        return SequenceFormat.fit(samples) if kind == "sequences" else GraphFormat.fit(samples)
    except MalformedRecordError as error:
        raise explain_no_rows(path, len(samples), str(error)) from None


def open_format(kind: str, store: Path, settings: Mapping[str, Any]) -> Format:
    if kind == "traces":
        return TraceFormat.open(store, settings)
    return (SequenceFormat if kind == "sequences" else GraphFormat)(**settings["shape"])


def explain_no_rows(path: Path, count: int, reason: str) -> InputError:
    if count == 1:
        return InputError(f'"{path}": its only record cannot be converted: {reason}.')
    return InputError(
        f'"{path}": none of its {count} records can be converted. The first one: {reason}.'
    )
