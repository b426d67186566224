"""The three kinds of rows behind one interface, chosen from the first file or from a store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from clew.base.errors import InputError, StoreError
from clew.base.texts import shortened
from clew.hallucination.legacy.records import MalformedRecordError, RowIds
from clew.hallucination.legacy.sample_rows import GraphFormat, SequenceFormat
from clew.hallucination.legacy.trace_rows import TraceFormat
from clew.hallucination.traces.schema import Keep
from clew.storage import Manifest, StoreReader


class Format(Protocol):
    """How samples of one kind become rows."""

    kind: str
    sizes: ClassVar[tuple[str, ...]]
    schema: pa.Schema
    notes: set[str]

    @property
    def settings(self) -> dict[str, Any]: ...

    def save(self, store: Path, /) -> dict[str, str]: ...

    def row(self, sample: Any, ids: RowIds) -> pa.RecordBatch: ...


_FORMATS: dict[str, type[Any]] = {
    form.kind: form for form in (TraceFormat, SequenceFormat, GraphFormat)
}


def fit_format(kind: str, samples: Sequence[Any], keep: Keep, path: Path) -> Format:
    try:
        if kind == "traces":
            return TraceFormat.fit(samples, keep)
        return SequenceFormat.fit(samples) if kind == "sequences" else GraphFormat.fit(samples)
    except MalformedRecordError as error:
        raise explain_no_rows(path, len(samples), str(error)) from None


def open_format(store: Path, manifest: Manifest) -> Format:
    """The format of a store that was started earlier; raises StoreError if its settings are not
    those of a conversion, or its shards have other columns."""
    kind = _FORMATS[manifest.kind]
    sizes = manifest.setting("shape")
    if sizes.keys() != {*kind.sizes}:
        raise StoreError(
            f'"settings.shape" of {store} is {shortened(sizes)}, but it must contain '
            f"{', '.join(kind.sizes)}: restore manifest.json from a backup, or convert again into "
            "another folder."
        )
    is_trace = kind is TraceFormat
    form: Format = TraceFormat.open(store, manifest.settings) if is_trace else kind(**sizes)
    _refuse_other_columns(store, form)
    return form


def _refuse_other_columns(store: Path, form: Format) -> None:
    reader = StoreReader(store)
    for entry in reader.shards[:1]:
        if not reader.open(entry).schema.equals(form.schema):
            raise StoreError(
                f"{entry.file} in {store} has other columns than the settings in the manifest say: "
                "convert the files again into another folder."
            )


def explain_no_rows(path: Path, count: int, reason: str) -> InputError:
    if count == 1:
        return InputError(f'"{path}": its only record cannot be converted: {reason}.')
    return InputError(
        f'"{path}": none of its {count} records can be converted. The first one: {reason}.'
    )
