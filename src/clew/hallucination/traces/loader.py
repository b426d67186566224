"""Read traces from a store: a trace is a lazy mapping; TraceBatchLoader and its two functions are
the calls that legacy scripts use."""

import gzip
import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from clew.base.errors import InputError, StoreError
from clew.base.texts import bytes_text, counted
from clew.hallucination.traces.packed import unpack_batch, unpack_column
from clew.hallucination.traces.schema import (
    check_traces,
    is_packed,
    plain_schema,
    read_kinds,
    read_shape,
    resolve_shape,
)
from clew.hallucination.traces.token_texts import read_token_texts
from clew.storage.mirror import open_folder
from clew.storage.reader import ShardReader, StoreReader, read_value
from clew.storage.writing import replacing

# What legacy scripts call the generated answer.
_ALIASES = {"generated_answer_clean": "answer"}


DEFAULT_TRACES_DIR = "./traces_data"


class Trace(Mapping[str, Any]):
    """Everything stored for one answer, as a lazy mapping: `trace["question"]`,
    `trace["last_hidden"]`, ...

    `list(trace)` gives the fields; a missing one raises KeyError. Arrays are read-only NumPy views
    into the memory-mapped shard, or float16 copies of states that are stored in 8 bits: reading a
    field touches only that field's bytes.
    `hidden_states[l]` is `[tokens, dim]`, `attentions[l]` is `[heads, tokens, tokens]` (both only
    in stores extracted with `keep="full"`). Where some layers of the model have no attention,
    what is stored of it is that of the others, `with_attention`.
    """

    def __init__(self, batch: pa.RecordBatch, row: int) -> None:
        self._batch = batch
        self._row = row

    def __getitem__(self, name: str) -> Any:
        name = _ALIASES.get(name, name)
        index = self._batch.schema.get_field_index(name)
        if index < 0:
            raise KeyError(self._explain_missing(name))
        field, column = self._batch.schema.field(index), self._batch.column(index)
        if is_packed(field):
            value = read_value(unpack_column(column.slice(self._row, 1), field), 0)
        else:
            value = read_value(column, self._row)
        shape = resolve_shape(field, self._tokens, self._answer_tokens)
        if value is None or shape is None:
            return value
        if value.size != math.prod(shape):
            number = self["global_example_id"]
            raise StoreError(
                f'"{name}" of trace {number} has {value.size:,} values, but its tokens require '
                f"{list(shape)}: extract or convert it again."
            )
        return value.reshape(shape)

    @property
    def layer_kinds(self) -> list[str]:
        """The kind of each layer; empty if all have attention."""
        return [layer["kind"] for layer in read_kinds(self._batch.schema)]

    @property
    def with_attention(self) -> tuple[int, ...]:
        """The layers that have attention."""
        return read_shape(self._batch.schema).with_attention

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch.schema.names)

    def __len__(self) -> int:
        return len(self._batch.schema.names)

    def __contains__(self, name: object) -> bool:
        return _ALIASES.get(str(name), str(name)) in self._batch.schema.names

    def __repr__(self) -> str:
        return (
            f"Trace({self['global_example_id']}, question={self['question']!r}, "
            f"answer={self['answer']!r}, {self._tokens} tokens)"
        )

    @property
    def _tokens(self) -> int:
        return len(read_value(self._batch.column("tokens"), self._row))

    @property
    def _answer_tokens(self) -> int:
        return self._tokens - (read_value(self._batch.column("prompt_length"), self._row) or 0)

    def _explain_missing(self, name: str) -> str:
        hint = (
            ' (it requires a store extracted with keep="full")'
            if name in ("hidden_states", "attentions")
            else ""
        )
        return f'this trace has no field "{name}"{hint}; it has: {", ".join(self)}'


class TraceBatchLoader:
    """Reads a trace store lazily, shard by shard ("batch") or trace by trace.

    Args:
        traces_dir: Folder of the store, or its URL (s3://, gs://, az://). At a URL, a single trace
            is fetched without the rest of its shard, in one round trip; whole batches are
            downloaded into the cache.
        cache_dir: Folder for what is downloaded. [default: the user's cache folder]
        cache_size: The most that this folder may take, such as "50GB", for all processes that
            share it. [default: what was set last, or 64 GB, at most half of the free space]

    Raises:
        StoreError: There is no trace store in the folder.
    """

    def __init__(
        self,
        traces_dir: str | Path = DEFAULT_TRACES_DIR,
        *,
        cache_dir: str | Path | None = None,
        cache_size: str | int | None = None,
    ) -> None:
        folder = open_folder(traces_dir, cache_dir=cache_dir, cache_size=cache_size)
        self._store = StoreReader(folder, check=check_traces)
        if self._store.manifest.kind != "traces":
            raise StoreError(
                f'"{traces_dir}" contains {self._store.manifest.kind}, not traces: '
                f'"clew inspect {traces_dir}" shows what is in it.'
            )
        self.traces_dir = self._store.path
        self.manifest = self._store.manifest

    def __len__(self) -> int:
        """The number of finished batches (shards)."""
        return len(self._store.shards)

    def __iter__(self) -> Iterator[Trace]:
        """One trace after another; see `iter_traces`."""
        return self.iter_traces()

    def __repr__(self) -> str:
        settings = self.manifest.settings
        model = (settings.get("model") or {}).get("id", "unknown model")
        questions = (settings.get("questions") or {}).get("name", "unknown questions")
        return (
            f"TraceBatchLoader('{self.traces_dir}': {model} on {questions}, "
            f"{counted(self.num_traces, 'trace')} in {counted(len(self), 'shard')}, "
            f"{bytes_text(self.manifest.bytes)})"
        )

    @property
    def num_traces(self) -> int:
        """The number of traces in all finished batches."""
        return self.manifest.rows

    @property
    def total_traces(self) -> int:
        return self.num_traces

    def get_total_traces(self) -> int:
        """The number of traces in all finished batches (an alias of `num_traces`)."""
        return self.total_traces

    def get_batch_info(self) -> list[dict[str, Any]]:
        """One dict per batch: `batch_idx`, `batch_number`, `filename`, `num_traces`, `size_mb`
        (MiB), `bytes` and `first_global_example_id`. Reads only the manifest."""
        return [
            {
                "batch_idx": index,
                "batch_number": shard.batch_number,
                "filename": shard.file,
                "num_traces": shard.rows,
                "size_mb": shard.bytes / 2**20,
                "bytes": shard.bytes,
                "first_global_example_id": shard.batch_number * self.manifest.rows_per_shard,
            }
            for index, shard in enumerate(self._store.shards)
        ]

    def get_batch(self, batch_idx: int) -> list[Trace]:
        """The traces of one batch, in the order of their ids; their arrays are read on access.
        Raises IndexError if there is no batch `batch_idx` (from 0)."""
        if not 0 <= batch_idx < len(self):
            raise IndexError(
                f"there is no batch {batch_idx} in {self.traces_dir}: it has {len(self)}, numbered "
                "from 0."
            )
        return list(_traces_in_order(self._store.shard(batch_idx)))

    def iter_batches(self) -> Iterator[list[Trace]]:
        """Iterate over the batches."""
        for index in range(len(self)):
            yield self.get_batch(index)

    def iter_traces(self) -> Iterator[Trace]:
        """Iterate over the traces in the order of `global_example_id`."""
        for index in range(len(self)):
            yield from _traces_in_order(self._store.shard(index))

    def get_trace_by_global_id(self, global_id: int) -> Trace | None:
        """The trace with this `global_example_id`, or None if the store has none."""
        number = global_id // self.manifest.rows_per_shard
        for index, shard in enumerate(self._store.shards):
            if shard.batch_number == number:
                reader = self._store.peek(index)
                at = reader.locate("global_example_id", global_id)
                return None if at is None else Trace(*reader.read_row(*at))
        return None


def merge_batches(
    output_file: str | Path = "./traces_data/all_traces_merged.pkl",
    traces_dir: str | Path = DEFAULT_TRACES_DIR,
) -> Path:
    """Write all traces of a store into one file, in constant memory.

    Args:
        output_file: .arrow, .pkl or .pkl.gz; see `extract_batch_subset`.
        traces_dir: Folder of the store.

    Returns:
        The path of the file.

    Raises:
        InputError: The extension is unknown.
        StoreError: There is no trace store in the folder.
    """
    loader = TraceBatchLoader(traces_dir)
    return extract_batch_subset(range(len(loader)), output_file, traces_dir)


def extract_batch_subset(
    batch_numbers: Iterable[int],
    output_file: str | Path,
    traces_dir: str | Path = DEFAULT_TRACES_DIR,
) -> Path:
    """Write the traces of some batches into one file, in constant memory.

    Args:
        batch_numbers: Indices of the batches, from 0.
        output_file: File to write. Its extension selects the format: `.arrow` is one Arrow file
            that any Arrow reader opens; `.pkl` and `.pkl.gz` are the list of dicts that legacy
            scripts load: also with `tokens_decoded`, if the model's tokenizer is on this machine.
        traces_dir: Folder of the store.

    Returns:
        The path of the file.

    Raises:
        InputError: There is no such batch, or the extension is unknown.
        StoreError: There is no trace store in the folder.
    """
    loader = TraceBatchLoader(traces_dir)
    indices = list(batch_numbers)
    for index in indices:
        if not 0 <= index < len(loader):
            raise InputError(
                f"there is no batch {index} in {traces_dir}: it has {len(loader)}, numbered from 0."
            )
    path = Path(output_file)
    if not path.name.endswith((".arrow", ".pkl", ".pkl.gz")):
        raise InputError(f'"{path.name}" must end in .arrow, .pkl or .pkl.gz.')
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        if path.suffix == ".arrow":
            _write_arrow(loader, indices, file)
        else:
            _write_pickle(loader, indices, file, compress=path.suffix == ".gz")
    return path


def _traces_in_order(reader: ShardReader) -> Iterator[Trace]:
    places = [
        (int(example_id), index, row)
        for index in range(reader.num_record_batches)
        for row, example_id in enumerate(reader.record_batch(index).column("example_id").to_numpy())
    ]
    for _, index, row in sorted(places):
        yield Trace(reader.record_batch(index), row)


def _write_arrow(loader: TraceBatchLoader, indices: Sequence[int], sink: BinaryIO) -> None:
    readers = [loader._store.shard(index) for index in indices]
    if not readers:
        raise InputError(
            "no batches given, so there is nothing to write: give at least one batch number."
        )
    with pa.ipc.new_file(sink, plain_schema(readers[0].schema)) as file:
        for reader in readers:
            for index in range(reader.num_record_batches):
                file.write_batch(unpack_batch(reader.record_batch(index)))


def _write_pickle(
    loader: TraceBatchLoader, indices: Sequence[int], sink: BinaryIO, *, compress: bool
) -> None:
    with gzip.open(sink, "wb", compresslevel=1) if compress else nullcontext(sink) as file:
        pickler = pickle.Pickler(file, protocol=4)
        pickler.fast = True  # no memo, which would keep every trace in memory until the end
        pickler.dump(_ListOfTraces(loader, indices))


class _ListOfTraces:
    """Pickled as a plain list, but passes its items to the pickler one at a time."""

    def __init__(self, loader: TraceBatchLoader, indices: Sequence[int]) -> None:
        self._loader = loader
        self._indices = indices

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (), None, self._items()

    def _items(self) -> Iterator[dict[str, Any]]:
        model = (self._loader.manifest.settings.get("model") or {}).get("id")
        for index in self._indices:
            for trace in self._loader.get_batch(index):
                yield _as_plain_dict(trace, model)


def _as_plain_dict(trace: Trace, model: str | None) -> dict[str, Any]:
    """The fields under the names that legacy scripts use. `tokens_decoded` needs the tokenizer of
    the model; it is missing if that is not on this machine."""
    plain = {name: trace[name] for name in trace}
    for name in ("hidden_states", "attentions"):
        if plain.get(name) is not None:
            plain[name] = [np.array(layer) for layer in plain[name]]
    plain["generated_answer_clean"] = plain["answer"]
    texts, note = read_token_texts(plain["tokens"], plain.get("tokens_decoded"), model, None)
    if note is None:
        plain["tokens_decoded"] = texts
    return plain
