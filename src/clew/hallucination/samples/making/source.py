"""The trace store that samples are built from: its sizes and its small columns."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int

from clew.base.errors import InputError, StoreError
from clew.hallucination.samples.making.flat import lengths
from clew.hallucination.traces.schema import (
    ANSWER_HIDDEN,
    BASIS_NAME,
    BY_HEAD,
    CONTEXT,
    DIAGONALS,
    EVALUATION,
    NO_EVALUATION,
    SPECTRUM,
    TOKEN_ENDS,
    EvaluationShape,
    check_traces,
    read_eigenvalues,
    read_evaluation,
    read_shape,
)
from clew.storage import ShardEntry, ShardReader, StoreReader
from clew.storage.hashing import hash_file, hash_text
from clew.storage.manifest import Manifest
from clew.storage.range_shard import RangeShard
from clew.storage.reading import read_bounded
from clew.storage.scratch import fetched, placing
from clew.storage.writing import replace_file

Reader = TypeVar("Reader", ShardReader, RangeShard, ShardReader | RangeShard)

MAPS = "attentions"
# Eigenvalues per head from traces that store the Laplacian's diagonal for every token.
LAPLACIAN_TOP = 100
# Optional columns for answers; a store without some of them yields answers without them.
TEXTS = (
    *("question", CONTEXT, "category", "accepted_answers", "answer", "stop_reason"),
    "samples",
)
NUMBERS = ("prompt_length", "token_logprobs", "token_entropies", "lookback", ANSWER_HIDDEN)
# The labels of answer tokens, made from span labels.
TOKEN_LABELS = "token_labels"
# What describes the machine or grows with the store does not identify it.
ARRAY_COLUMNS = ("last_hidden", "nodes", "edge_source", "edge_weight")
_NOT_IDENTITY = ("machine", "sources")


def hash_traces(manifest: Manifest) -> str:
    """A hash of how the traces of a store were made, which identifies them."""
    settings = {k: v for k, v in manifest.settings.items() if k not in _NOT_IDENTITY}
    model = settings.pop("model", None) or {}
    # As in capture: the fingerprint identifies a model, whatever name it was loaded as.
    model_settings = {k: v for k, v in model.items() if k not in ("id", "revision")}
    return hash_text(json.dumps([settings, model_settings, manifest.files], sort_keys=True))


@dataclass(frozen=True, kw_only=True)
class SourceShape:
    """The sizes of the stored arrays that samples are built from."""

    layers: int
    dim: int
    node_dim: int
    edges_per_token: int
    heads: int | None  # None: nothing is stored per head
    has_maps: bool  # whether the full attention maps are stored
    extras: frozenset[str]  # columns for answers: texts, and numbers that all traces have
    has_token_ends: bool = False  # whether all traces say where tokens end in the answer's text
    evaluation: EvaluationShape = NO_EVALUATION  # the sizes of what the model says of answers
    eigenvalues: int = LAPLACIAN_TOP  # per head, the largest first


@dataclass(frozen=True, kw_only=True)
class ShardTable:
    """The small columns of one trace shard, with its rows in file order."""

    entry: ShardEntry
    global_example_id: Int[np.ndarray, " rows"]
    question_id: list[str]
    question: list[str | None]
    answer: list[str | None]
    tokens: Int[np.ndarray, " rows"]
    answer_tokens: Int[np.ndarray, " rows"]  # all, if the prompt's length is unknown
    text_bytes: int


class TraceSource:
    """A trace store; raises StoreError if it is not one, InputError if it is empty."""

    def __init__(self, path: Path) -> None:
        self._store = store = StoreReader(path, max_open=1, check=check_traces)
        self.path, self.manifest = store.path, store.manifest
        if self.manifest.kind != "traces":
            raise InputError(
                f'"{path}" contains {self.manifest.kind}, not traces: give the store that '
                f'"clew extract" or "clew convert" wrote.'
            )
        self.shards: Sequence[ShardEntry] = [shard for shard in store.shards if shard.rows]
        if not self.shards:
            raise InputError(
                f'"{path}" has no traces yet: let "clew extract" finish a shard first.'
            )

    def open(self, entry: ShardEntry) -> ShardReader:
        """The reader of a shard; raises StoreError if it lacks what samples are built from."""
        return self._refuse_lacking(self._store.open(entry))

    def _peek(self, entry: ShardEntry) -> ShardReader | RangeShard:
        """As `open`, to read little of it: it need not be downloaded."""
        return self._refuse_lacking(self._store.peek(self._store.shards.index(entry)))

    def _refuse_lacking(self, reader: Reader) -> Reader:
        missing = [name for name in ARRAY_COLUMNS if name not in reader.schema.names]
        if missing:
            raise StoreError(
                f'the traces of "{self.path}" have no "{missing[0]}": extract or convert them '
                "again with this version of clew."
            )
        return reader

    @cached_property
    def shape(self) -> SourceShape:
        schema, found = self._peek(self.shards[0]).schema, self._find_extras()
        sizes = read_shape(schema)
        return SourceShape(
            layers=sizes.layers,
            dim=sizes.dim,
            node_dim=sizes.node_dim,
            edges_per_token=sizes.edges_per_token,
            heads=sizes.heads or None,
            has_maps=MAPS in found,
            extras=found - {MAPS, TOKEN_ENDS},
            has_token_ends=TOKEN_ENDS in found,
            evaluation=read_evaluation(schema),
            eigenvalues=read_eigenvalues(schema) if SPECTRUM in found else LAPLACIAN_TOP,
        )

    def _find_extras(self) -> frozenset[str]:
        """Shard by shard: a large store has too many files to open at once."""
        found = {*TEXTS, *NUMBERS, *BY_HEAD, *DIAGONALS, *EVALUATION, MAPS, TOKEN_ENDS}
        for entry in self.shards:
            reader = self._peek(entry)
            found = {name for name in found if _holds(reader, name)}
        return frozenset(found)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Name, model and a hash of the settings, which identify a trace store."""
        model = self.manifest.settings.get("model") or {}
        return {
            "store": self.path.resolve().name,
            "model": model.get("id"),
            "sha256": hash_traces(self.manifest),
            "basis": self.manifest.files.get(BASIS_NAME),
            "capture": {k: v for k, v in self.manifest.settings.items() if k not in _NOT_IDENTITY},
        }

    def copy_basis(self, folder: Path) -> bool:
        """Put the basis of the nodes, if the store has one, beside the samples: a detector on nodes
        projects new states with it. Returns False if it is missing or damaged."""
        sha256 = self.manifest.files.get(BASIS_NAME)
        if sha256 is None or _hash_basis(folder) == sha256:
            return True
        basis = self.path / BASIS_NAME
        if _hash_basis(self.path) != sha256:
            return False
        with placing(folder, BASIS_NAME) as path:
            replace_file(path, read_bounded(basis, basis.stat().st_size))
        return True

    def read_tables(self) -> list[ShardTable]:
        """The small columns of all shards; the large ones are not read."""
        return [self._read_table(entry) for entry in self.shards]

    def _read_table(self, entry: ShardEntry) -> ShardTable:
        reader = self._peek(entry)
        texts = [name for name in TEXTS if name in reader.schema.names]
        names = ("global_example_id", "question_id", "tokens", "prompt_length")
        rows = reader.read_columns([*names, *texts])
        tokens = np.concatenate([lengths(column) for column in rows["tokens"].chunks])
        prompts = rows["prompt_length"].fill_null(0).to_numpy()
        return ShardTable(
            entry=entry,
            global_example_id=rows["global_example_id"].to_numpy(),
            question_id=rows["question_id"].to_pylist(),
            question=rows["question"].to_pylist(),
            answer=rows["answer"].to_pylist(),
            tokens=tokens,
            answer_tokens=count_answer(tokens, prompts),
            text_bytes=rows.select(texts).nbytes,
        )


def _hash_basis(folder: Path) -> str | None:
    with fetched(folder, BASIS_NAME) as path:
        return hash_file(path) if path.is_file() else None


def count_answer(tokens: Int[np.ndarray, " rows"], prompts: np.ndarray) -> np.ndarray:
    """The number of answer tokens; a prompt is never longer than the sequence."""
    return tokens - np.clip(prompts, 0, tokens)


def _holds(reader: ShardReader | RangeShard, name: str) -> bool:
    """Whether a shard has the column without missing rows."""
    if name not in reader.schema.names:
        return False
    return name in (*TEXTS, MAPS) or not reader.count_missing(name)
