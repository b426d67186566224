"""The trace store that samples are made from: its sizes, and its small columns."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from clew.errors import InputError, StoreError
from clew.shards import ShardEntry, ShardReader, StoreReader
from clew.shards.hashing import hash_text

_NEEDED = ("last_hidden", "nodes", "edge_source", "edge_weight")
# What describes the machine, or grows with the store, does not tell whether it is the same.
_NOT_IDENTITY = ("machine", "sources")


@dataclass(frozen=True, kw_only=True)
class SourceShape:
    """The sizes of the stored arrays that samples are cut from."""

    layers: int
    dim: int
    node_dim: int
    edges_per_token: int
    heads: int | None  # None: the attention maps are not stored


@dataclass(frozen=True, kw_only=True)
class ShardTable:
    """The small columns of one trace shard, its rows as they lie in the file."""

    entry: ShardEntry
    global_example_id: Int[np.ndarray, " rows"]
    question_id: list[str]
    question: list[str | None]
    answer: list[str | None]
    tokens: Int[np.ndarray, " rows"]


class TraceSource:
    """A store of traces; raises StoreError when it is not one, InputError when it is empty."""

    def __init__(self, path: Path) -> None:
        store = StoreReader(path)
        self.path, self.manifest = store.path, store.manifest
        if self.manifest.kind != "traces":
            raise InputError(
                f'"{path}" holds {self.manifest.kind}, not traces: give the store that '
                f'"clew extract" or "clew convert" wrote.'
            )
        self.shards: Sequence[ShardEntry] = [shard for shard in store.shards if shard.rows]
        if not self.shards:
            raise InputError(
                f'"{path}" has no traces yet: let "clew extract" finish a batch first.'
            )

    def open(self, entry: ShardEntry) -> ShardReader:
        return ShardReader(self.path / entry.file)

    @cached_property
    def shape(self) -> SourceShape:
        schema = self.open(self.shards[0]).schema
        missing = [name for name in _NEEDED if name not in schema.names]
        if missing:
            raise StoreError(
                f'the traces of "{self.path}" have no "{missing[0]}": capture or convert them '
                f"with this clew."
            )
        last, heads = schema.field("last_hidden").type, None
        if "attentions" in schema.names:
            heads = int((schema.field("attentions").metadata or {})[b"shape"].split(b",")[1])
        return SourceShape(
            layers=last.list_size,
            dim=last.value_type.list_size,
            node_dim=schema.field("nodes").type.value_type.list_size,
            edges_per_token=schema.field("edge_source").type.value_type.list_size,
            heads=heads,
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Name, model and a hash of the settings: what tells one trace store from another."""
        settings = {k: v for k, v in self.manifest.settings.items() if k not in _NOT_IDENTITY}
        files = self.manifest.files
        model = settings.pop("model", None) or {}
        # As in capture: the fingerprint tells a model, under whatever name it was loaded.
        model_settings = {k: v for k, v in model.items() if k not in ("id", "revision")}
        text = json.dumps([settings, model_settings, files], sort_keys=True)
        return {
            "store": self.path.resolve().name,
            "model": model.get("id"),
            "sha256": hash_text(text),
        }

    def read_tables(self) -> list[ShardTable]:
        """The small columns of all shards; the large ones stay unread."""
        return [self._read_table(entry) for entry in self.shards]

    def _read_table(self, entry: ShardEntry) -> ShardTable:
        reader = self.open(entry)
        tokens = [
            column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            for column in reader.read_column("tokens").chunks
        ]
        return ShardTable(
            entry=entry,
            global_example_id=_to_numpy(reader.read_column("global_example_id")),
            question_id=reader.read_column("question_id").to_pylist(),
            question=reader.read_column("question").to_pylist(),
            answer=reader.read_column("answer").to_pylist(),
            tokens=np.concatenate(tokens).astype(np.int64),
        )


def _to_numpy(column: pa.ChunkedArray) -> np.ndarray:
    return column.to_numpy()
