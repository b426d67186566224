"""Answer features by field and split, for methods that are fitted. Values are read from the files
piece by piece: mapped pages would count as the process's memory.
"""

from collections.abc import Callable, Hashable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from clew.base.errors import InputError, StoreError
from clew.hallucination.samples.columns import check_samples
from clew.hallucination.samples.index import find_store, open_samples, read_index
from clew.hallucination.samples.source import KINDS, NODE_TOKENS
from clew.hallucination.samples.store import is_refused
from clew.hallucination.traces.compact import BASIS_NAME, Basis, load_basis
from clew.hallucination.traces.schema import WITHOUT_ATTENTION, id_fields
from clew.loading.reader import Rows, SampleReader
from clew.loading.samples import SampleIndex
from clew.loading.splits import SPLIT_NAMES
from clew.storage.arrow import is_list
from clew.storage.manifest import MANIFEST_NAME, read_manifest
from clew.storage.reader import ShardReader, StoreReader

_NODES = "nodes"
_SHARE = 0.25  # of the free memory
_READ_BYTES = 16 << 20
_OPEN_FILES = 16
SEQUENCE = "sequence"
_NOT_FIELDS = {*(field.name for field in id_fields()), "label", "score"}
_BY_LAYER = (SEQUENCE, "state_mean", "node_mean", "lookback", "log_diagonal_all")
_BY_HEAD = ("lookback", "log_diagonal_all", "laplacian_answer")


class FieldMemory:
    """Whole fields, as they are stored, up to `limit_bytes` in all. [default: a quarter of the
    memory that is free] Half of what is free when a field is read stays free: other processes of
    the same comparison keep fields too.

    The first that fit stay: the trials of a comparison read the same fields in the same order, so
    that making room for later ones would keep none until it is read again.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._left = int(_SHARE * _free_bytes()) if limit_bytes is None else limit_bytes
        self._fields: dict[Hashable, np.ndarray] = {}

    def take(self, name: Hashable, size: int, read: Callable[[], np.ndarray]) -> np.ndarray | None:
        """The field, read at most once; None if its `size` in bytes does not fit."""
        if name not in self._fields:
            if size > min(self._left, _free_bytes() // 2):
                return None
            self._fields[name] = read()
            self._left -= size
        return self._fields[name]


def _free_bytes() -> int:
    return psutil.virtual_memory().available


class TokenNodes:
    """Reads the nodes of answer tokens. `prompts` are the prompt lengths of all samples of the
    index."""

    def __init__(self, path: Path, index: SampleIndex, prompts: Rows) -> None:
        self._reader = _open_columns(path, index, _NODES, "node_counts")
        [self._layers] = self._reader.columns["node_counts"].item_shape
        self._prompts = prompts

    def read(self, rows: Rows, layer: int | None) -> list[np.ndarray]:
        """For each row float32 `[tokens, features]` of a layer, or `[tokens, layers, features]` of
        all."""
        if layer is None:
            every = [self.read(rows, one) for one in range(self._layers)]
            return [np.stack(one, axis=1) for one in zip(*every, strict=True)]
        if not 0 <= layer < self._layers:
            raise InputError(
                f'"{NODE_TOKENS}" has no layer {layer}: its layers are 0 to {self._layers - 1}.'
            )
        shards, column = self._reader.locate(rows), self._reader.columns[_NODES]
        tokens = column.counts[rows] // self._layers
        prompts = np.clip(self._prompts[rows], 0, tokens)
        starts = column.starts[rows] + (layer * tokens + prompts) * column.item_bytes
        sizes = (tokens - prompts) * column.item_bytes
        ends = np.cumsum(sizes)
        content = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        pieces = np.stack([shards, starts, ends - sizes, sizes], axis=1)
        self._reader.files.copy(pieces[sizes > 0].tolist(), content)
        values = content.view(column.dtype).reshape(-1, *column.item_shape).astype(np.float32)
        return np.split(values, np.cumsum(tokens - prompts)[:-1]) if len(rows) else []

    def bytes_per_answer(self) -> float:
        """The average size of the nodes of an answer's tokens in all layers."""
        rows = np.arange(len(self._prompts))
        self._reader.locate(rows)
        column = self._reader.columns[_NODES]
        tokens = column.counts // self._layers
        answer = tokens - np.clip(self._prompts, 0, tokens)
        return float(np.mean(answer)) * self._layers * column.item_bytes


class StoredFields:
    """Reads columns of a store whose samples are those of `index`."""

    def __init__(self, path: Path, index: SampleIndex, memory: FieldMemory | None = None) -> None:
        self.store, self._index = StoreReader(path, check=check_samples), index
        self._memory = memory
        if not self.store.shards:
            raise StoreError(f"{path} has no samples yet: rerun the command that writes it.")
        self.store.check_sizes()  # otherwise a long comparison would only fail at its end
        self._schema = self._open(0).schema
        self._readers: dict[str, SampleReader] = {}

    @property
    def names(self) -> list[str]:
        return self._schema.names

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of one answer's values; () for ragged values, scalars and text."""
        kind, shape = self._schema.field(name).type, []
        while pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
            kind = kind.value_type
        return tuple(shape)

    def read(self, name: str, rows: Rows, layer: int | None) -> Any:
        """See `AnswerFeatures.read`."""
        kind, shape = self._schema.field(name).type, self.shape_of(name)
        if layer is not None and (len(shape) < 2 or not 0 <= layer < shape[0]):
            has = f"its layers are 0 to {shape[0] - 1}" if len(shape) > 1 else "it has no layers"
            raise InputError(f'"{name}" has no layer {layer}: {has}.')
        if pa.types.is_string(kind.value_type if is_list(kind) else kind):
            texts = [text for chunk in self._chunks(name) for text in chunk.to_pylist()]
            return [texts[row] for row in rows.tolist()]
        if shape:
            return self._read_fixed(name, rows, layer)
        return self._read_ragged(name, rows) if is_list(kind) else self._read_single(name, rows)

    def count_bytes(self, name: str) -> int:
        return sum(chunk.nbytes for chunk in self._chunks(name))

    def _read_fixed(self, name: str, rows: Rows, layer: int | None) -> np.ndarray:
        reader = self._reader(name)
        shape, dtype = reader.columns[name].item_shape, reader.columns[name].dtype
        first, size = 0, reader.columns[name].item_bytes
        whole = self._remember(name, reader)
        if whole is not None:
            return (whole[rows] if layer is None else whole[rows, layer]).astype(np.float32)
        if layer is not None:
            shape, size = shape[1:], size // shape[0]
            first = layer * size
        out = np.empty((len(rows), *shape), np.float32)
        at_once = max(1, _READ_BYTES // size)
        for start in range(0, len(rows), at_once):
            some = rows[start : start + at_once]
            content = _copy_pieces(reader, name, some, first, size)
            out[start : start + at_once] = content.view(dtype).reshape(len(some), *shape)
        return out

    def _remember(self, name: str, reader: SampleReader) -> np.ndarray | None:
        """All rows of a field, if there is memory for them."""
        column, every = reader.columns[name], np.arange(reader.rows)

        def read() -> np.ndarray:
            content = _copy_pieces(reader, name, every, 0, column.item_bytes)
            return content.view(column.dtype).reshape(len(every), *column.item_shape)

        if self._memory is None:
            return None
        key = (self.store.path.resolve(), name)
        return self._memory.take(key, len(every) * column.item_bytes, read)

    def _read_ragged(self, name: str, rows: Rows) -> list[np.ndarray]:
        reader = self._reader(name)
        values = reader.read_rows(name, rows, reader.locate(rows))
        return [value.astype(np.float32, copy=False) for value in values]

    def _read_single(self, name: str, rows: Rows) -> np.ndarray:
        parts = [chunk.to_numpy(zero_copy_only=False) for chunk in self._chunks(name)]
        return np.concatenate(parts).astype(np.float32)[rows]

    def _reader(self, name: str) -> SampleReader:
        """The reader of a column. It is cached, so that the positions of the values are looked up
        once even though layers are read one by one."""
        if name not in self._readers:
            self._readers[name] = _open_columns(self.store.path, self._index, name)
        return self._readers[name]

    def _chunks(self, name: str) -> Iterator[pa.Array]:
        """Read a small column, shard by shard; no shard stays mapped."""
        for shard in range(len(self.store.shards)):
            yield from self._open(shard).read_column(name).chunks

    def _open(self, shard: int) -> ShardReader:
        return self.store.open(self.store.shards[shard])


def _open_columns(path: Path, index: SampleIndex, *names: str) -> SampleReader:
    return SampleReader(
        path,
        names,
        ids=index.example_ids,
        questions=index.question_ids,
        check=check_samples,
        access="read",
        max_open=_OPEN_FILES,
    )


def _copy_pieces(reader: SampleReader, name: str, rows: Rows, first: int, size: int) -> np.ndarray:
    """`size` bytes of every row, starting at its byte `first`."""
    content = np.empty(len(rows) * size, np.uint8)
    shards, starts = reader.locate(rows), reader.columns[name].starts[rows] + first
    places = np.arange(len(rows)) * size
    pieces = np.stack([shards, starts, places, np.full(len(rows), size)], axis=1)
    reader.files.copy(pieces.tolist(), content)
    return content


class AnswerFeatures:
    """The features of all answers in a folder that `clew preprocess` wrote, by field and split.

    `fields` are the names that can be read: the columns of answers/, "sequence" (the last token's
    states, `[layers, dim]`) if there are sequences/, and "node_tokens" (the projected states of
    each answer token) if there are graphs/; `samples` are the kinds of samples in the folder.
    `labels` (1 is hallucinated), `question_ids` and `ids` (`global_example_id`) have one array per
    split. The rows of a split have the same order in every field: that of the map-style datasets.
    With `memory`, fields are kept there as far as they fit.
    Raises InputError for a folder without answers and sequences, StoreError for an incomplete one.
    """

    def __init__(self, folder: Path, *, memory: FieldMemory | None = None) -> None:
        self.folder = open_samples(folder)
        self.name = f"{self.folder}"
        held: list[str] = [kind for kind in KINDS if (self.folder / kind / MANIFEST_NAME).exists()]
        self.samples = self._held = frozenset(held)
        self._hashes: dict[str, list[str]] = {}
        paths = {k: find_store(self.folder, k) for k in self._choose_stores()}
        self.samples |= {*paths}
        indices = {kind: read_index(path, kind) for kind, path in paths.items()}
        self._stores = {
            kind: StoredFields(path, indices[kind], memory) for kind, path in paths.items()
        }
        self._manifest = next(iter(self._stores.values())).store.manifest
        self.fields = self._list_fields()
        # Ids, labels and splits of all answers.
        self.index = index = next(iter(indices.values()))
        self._parts = {name: index.select(name) for name in SPLIT_NAMES}
        self.labels = {name: (p.labels > 0.5).astype(np.int8) for name, p in self._parts.items()}
        self.question_ids = {name: part.question_ids for name, part in self._parts.items()}
        self.ids = {name: part.example_ids for name, part in self._parts.items()}

    @property
    def layers(self) -> int:
        return self._size(0, _BY_LAYER) or int(self._manifest.setting("shape.layers"))

    @property
    def without_attention(self) -> tuple[int, ...]:
        """The layers that have no attention."""
        return tuple(self._manifest.settings.get(WITHOUT_ATTENTION, ()))

    @property
    def dim(self) -> int:
        """The dimension of the states."""
        return self._size(1, (SEQUENCE, "state_mean")) or int(self._manifest.setting("shape.dim"))

    @property
    def heads(self) -> int | None:
        """The number of attention heads; None if nothing is stored per head."""
        return self._size(1, _BY_HEAD)

    @property
    def identity(self) -> dict[str, Any]:
        """What identifies the model and its answers: `store` and `sha256` (a hash of how its traces
        were made), `model` (a dict with at least `id`) and `questions`. Unknown entries are None.
        """
        source = self._source
        capture = source.get("capture") or {}
        known = {name: source.get(name) for name in ("store", "sha256")}
        model = capture.get("model") or {"id": source.get("model")}
        return {**known, "model": model, "questions": capture.get("questions")}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings behind the samples: `capture` says how the traces were made (empty if
        unknown), `preprocess` how the samples were made from them."""
        not_said = ("command", "source", "sources")
        made = {
            name: value for name, value in self._manifest.settings.items() if name not in not_said
        }
        return {"capture": self._source.get("capture") or {}, "preprocess": made}

    def shard_hashes(self, kind: str) -> list[str]:
        """The hashes of the files with this kind of samples, which change with any value."""
        if kind not in self._hashes:
            path = self.folder / kind if kind in self._held else self.folder
            self._hashes[kind] = [shard.sha256 for shard in read_manifest(path).shards]
        return self._hashes[kind]

    @property
    def refused(self) -> int:
        """The number of answers that the model refused, which are not among these."""
        return sum(map(is_refused, self._manifest.skipped))

    @property
    def basis_hash(self) -> str | None:
        """The hash of the basis of the nodes: nodes of folders with the same one are comparable."""
        found = self._source.get("basis")
        return None if found is None else str(found)

    def load_basis(self) -> Basis | None:
        """The basis of the nodes; None if it is not beside the samples, as in folders of earlier
        versions. Raises StoreError if it is damaged."""
        path = self.folder / BASIS_NAME
        if not path.exists():
            return None
        try:
            return load_basis(self.folder, self.basis_hash)
        except StoreError:
            raise StoreError(
                f'{path} is damaged: run the same "clew preprocess" command again.'
            ) from None

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:
        """Read a field. Args: field: One of `fields`. split: train, validation or test. layer: Read
        only this layer of a field with layers. Returns: Numbers as float32 `[rows, ...]`; ragged
        numbers as a list of float32 arrays; text as a list of strings (or lists of strings), None
        where missing. Raises: InputError: The field, split or layer does not exist. Raises
        InputError for an unknown field."""
        if split not in self._parts:
            raise InputError(f'split is "{split}": choose from: {", ".join(SPLIT_NAMES)}.')
        return self.read_rows(field, self._parts[split].rows, layer=layer)

    def read_rows(self, field: str, rows: Rows, *, layer: int | None = None) -> Any:
        """Like `read`, for answers by their places in `index`."""
        if field == NODE_TOKENS and field in self.fields:
            return self._token_nodes.read(rows, layer)
        return self._store_of(field).read(field, rows, layer)

    def shape_of(self, field: str) -> tuple[int, ...]:
        """The shape of one answer's values; () for ragged values, scalars and text. Raises
        InputError for an unknown field."""
        return self._store_of(field).shape_of(field)

    def bytes_of(self, field: str) -> float:
        """The average number of bytes stored per answer for a field, or for a kind of samples
        ("graphs", "heads")."""
        if field in self.samples:
            manifest = read_manifest(self.folder / field)
            return manifest.bytes / max(1, manifest.rows)
        if field == NODE_TOKENS and field in self.fields:
            return self._token_nodes.bytes_per_answer()
        return self._store_of(field).count_bytes(field) / max(1, len(self.index.rows))

    def _choose_stores(self) -> list[str]:
        """The stores to read fields from; the folder may also be a store of sequences."""
        found: list[str] = [k for k in ("sequences", "answers") if k in self.samples]
        if found or (self.folder / MANIFEST_NAME).exists():
            return found or ["sequences"]
        raise InputError(
            f'"{self.folder}" contains neither answers nor sequences: give a folder written by '
            '"clew preprocess".'
        )

    def _list_fields(self) -> frozenset[str]:
        names = {SEQUENCE} if "sequences" in self._stores else set()
        answers = self._stores["answers"].names if "answers" in self._stores else []
        if "graphs" in self.samples and "prompt_length" in answers:
            names.add(NODE_TOKENS)
        return frozenset(names | {*answers} - _NOT_FIELDS)

    @cached_property
    def _token_nodes(self) -> TokenNodes:
        prompts = self._stores["answers"].read("prompt_length", self.index.rows, None)
        return TokenNodes(self.folder / "graphs", self.index, prompts.astype(np.int64))

    def _store_of(self, field: str) -> StoredFields:
        if field not in self.fields:
            raise InputError(
                f'"{self.folder}" has no field "{field}", only '
                f'{", ".join(sorted(self.fields))}: run the same "clew preprocess" command '
                "again to add missing fields."
            )
        return self._stores["sequences" if field == SEQUENCE else "answers"]

    def _size(self, axis: int, fields: tuple[str, ...]) -> int | None:
        """The size of the axis of the first field that is present."""
        known = (self._store_of(name).shape_of(name) for name in fields if name in self.fields)
        return next((shape[axis] for shape in known), None)

    @property
    def _source(self) -> dict[str, Any]:
        source = self._manifest.settings.get("source")
        return source if isinstance(source, dict) else {}
