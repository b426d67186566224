"""The trace store that samples are built from: its sizes and its small columns."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int

from clew.base.cores import count_cores
from clew.base.errors import InputError, StoreError
from clew.base.settings import check_numbers, check_positive
from clew.hallucination.labels import Refused
from clew.hallucination.samples.splits import name_groups
from clew.hallucination.traces.schema import (
    ANSWER_HIDDEN,
    BASIS_NAME,
    BY_HEAD,
    CONTEXT,
    DIAGONALS,
    EVALUATION,
    GROUP,
    NO_EVALUATION,
    SPECTRUM,
    TOKEN_ENDS,
    EvaluationShape,
    TraceShape,
    check_traces,
    id_fields,
    read_eigenvalues,
    read_evaluation,
    read_shape,
)
from clew.loading.splits import Shares
from clew.storage.arrow import flatten
from clew.storage.manifest import Manifest, ShardEntry
from clew.storage.reader import ShardReader, StoreReader
from clew.storage.reading import hash_file, hash_text, read_bounded
from clew.storage.working_copy import fetched, placing
from clew.storage.writing import replace_file

MAPS = "attentions"
# Eigenvalues per head from traces that store the Laplacian's diagonal for every token.
LAPLACIAN_TOP = 100
# Optional columns for answers; a store without some of them yields answers without them.
TEXTS = (
    *("question", CONTEXT, GROUP, "category", "accepted_answers", "answer", "stop_reason"),
    "samples",
)
NUMBERS = ("prompt_length", "token_logprobs", "token_entropies", "lookback", ANSWER_HIDDEN)
# Made from span labels: the labels of answer tokens, and the spans themselves.
TOKEN_LABELS, ANSWER_SPANS = "token_labels", "answer_spans"
# Where they are: the spans, and the ends of tokens, in characters of the answer.
PLACES = (ANSWER_SPANS, TOKEN_ENDS)
# What describes the machine or grows with the store does not identify it.
_NOT_IDENTITY = ("machine", "sources")
_STATES, EDGES = ("last_hidden", "nodes"), ("edge_source", "edge_weight")


def array_columns(shape: TraceShape) -> tuple[str, ...]:
    """The columns that samples are built from: without attention, there are no edges."""
    return (*_STATES, *EDGES) if shape.attention_layers else _STATES


def hash_traces(manifest: Manifest) -> str:
    """A hash of how the traces of a store were made, which identifies them."""
    settings = {k: v for k, v in manifest.settings.items() if k not in _NOT_IDENTITY}
    model = settings.pop("model", None) or {}
    # As in capture: the fingerprint identifies a model, whatever name it was loaded as.
    model_settings = {k: v for k, v in model.items() if k not in ("id", "revision")}
    return hash_text(json.dumps([settings, model_settings, manifest.files], sort_keys=True))


@dataclass(frozen=True, kw_only=True)
class SourceShape(TraceShape):
    """The sizes of the stored arrays that samples are built from; no heads if nothing is stored per
    head."""

    has_maps: bool = False  # whether the full attention maps are stored
    extras: frozenset[str] = frozenset()  # columns for answers: texts, numbers that all traces have
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
    truncated: Bool[np.ndarray, " rows"]  # cut off at the limit of new tokens
    group: list[str | None]  # what must not be split of given answers; see `name_groups`
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

    def _peek(self, entry: ShardEntry) -> ShardReader:
        """As `open`, to read little of it: it need not be downloaded."""
        return self._refuse_lacking(self._store.peek(self._store.shards.index(entry)))

    def _refuse_lacking(self, reader: ShardReader) -> ShardReader:
        needed = array_columns(read_shape(reader.schema))
        missing = [name for name in needed if name not in reader.schema.names]
        if missing:
            raise StoreError(
                f'the traces of "{self.path}" have no "{missing[0]}": extract or convert them '
                "again with this version of clew."
            )
        return reader

    @cached_property
    def shape(self) -> SourceShape:
        schema, found = self._peek(self.shards[0]).schema, self._find_extras()
        return SourceShape(
            **asdict(read_shape(schema)),
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
        stopped = rows["stop_reason"].to_pylist() if "stop_reason" in texts else [None] * len(rows)
        return ShardTable(
            entry=entry,
            global_example_id=rows["global_example_id"].to_numpy(),
            question_id=rows["question_id"].to_pylist(),
            question=rows["question"].to_pylist(),
            answer=rows["answer"].to_pylist(),
            truncated=np.array([one == "length" for one in stopped], bool),
            group=_name_groups(rows),
            tokens=tokens,
            answer_tokens=count_answer(tokens, prompts),
            text_bytes=rows.select(texts).nbytes,
        )


def _name_groups(rows: pa.Table) -> list[str | None]:
    if GROUP not in rows.column_names:
        return [None] * len(rows)
    contexts = rows[CONTEXT].to_pylist() if CONTEXT in rows.column_names else None
    return name_groups(rows[GROUP].to_pylist(), rows["question"].to_pylist(), contexts)


def _hash_basis(folder: Path) -> str | None:
    with fetched(folder, BASIS_NAME) as path:
        return hash_file(path) if path.is_file() else None


def count_answer(tokens: Int[np.ndarray, " rows"], prompts: np.ndarray) -> np.ndarray:
    """The number of answer tokens; a prompt is never longer than the sequence."""
    return tokens - np.clip(prompts, 0, tokens)


def _holds(reader: ShardReader, name: str) -> bool:
    """Whether a shard has the column without missing rows."""
    if name not in reader.schema.names:
        return False
    return name in (*TEXTS, MAPS) or not reader.count_missing(name)


Kind = Literal["sequences", "graphs", "answers", "heads"]
KINDS: tuple[Kind, ...] = ("sequences", "graphs", "answers", "heads")
# The field of the answers under which the states are read.
NODE_TOKENS = "node_tokens"
SplitBy = Literal["question", "file"]


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig:
    """Settings of `preprocess_store`; None for `top_k` and `node_dim` means all that is stored.
    "heads" require traces with full attention maps. Traces at a URL are read through `cache_dir`,
    which may take `cache_size` bytes (see `open_folder`)."""

    store: Path
    scores_file: Path
    out: Path
    score_threshold: float = 0.5
    attn_threshold: float = 0.0
    top_k: int | None = None
    node_dim: int | None = None
    shares: Shares = field(default_factory=Shares)
    split_by: SplitBy = "question"
    kinds: tuple[Kind, ...] = KINDS
    workers: int | None = None
    skip_unlabeled: bool = False
    refused: Refused = "exclude"
    score_column: str | None = None
    higher_is: Literal["correct", "hallucinated"] | None = None
    spans_file: Path | None = None  # None: the one beside the scores file, if it exists
    cache_dir: Path | None = None
    cache_size: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        if not self.kinds:
            without = ", ".join(f"`{kind}=False`" for kind in KINDS)
            raise InputError(f"{without} together leave nothing to create: omit one of them.")
        if self.refused not in get_args(Refused):
            known = ", ".join(get_args(Refused))
            raise InputError(f"choose from: {known}.", setting="refused", value=self.refused)
        for name in ("score_threshold", "attn_threshold"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError("it must be from 0 to 1.", setting=name, value=value)
        check_positive(self, "top_k", "node_dim", "workers")

    def count_workers(self, jobs: int) -> int:
        """The number of workers: as requested, or one per core; never more than there are jobs."""
        return max(1, min(self.workers or count_cores(), jobs))


@dataclass(frozen=True, kw_only=True)
class SampleShape:
    """The sizes of the samples and of the stored arrays."""

    source: SourceShape
    features: int
    top_k: int
    attn_threshold: float

    @property
    def from_maps(self) -> bool:
        """Whether more edges are requested than stored, so that they come from the full maps."""
        return self.top_k > self.source.edges_per_token

    def can_make(self, kind: Kind) -> bool:
        """Whether the traces contain what this kind requires."""
        return kind != "heads" or (self.source.has_maps and "prompt_length" in self.source.extras)

    def columns(self, kinds: Collection[Kind]) -> list[str]:
        """The trace columns to read. All of them are checked for unusable traces, whichever kinds
        are requested, so that all kinds contain the same samples."""
        ids = [field.name for field in id_fields()]
        needs_maps = self.from_maps or "heads" in kinds
        maps = [MAPS] if needs_maps else []
        ends = [TOKEN_ENDS] if TOKEN_LABELS in self.source.extras else []
        extras = sorted(self.source.extras - {TOKEN_LABELS, *PLACES})
        return [*ids, "tokens", *array_columns(self.source), *extras, *ends, *maps]


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The token counts of some traces, in total and of the answer."""

    tokens: Int[np.ndarray, " rows"]
    answer: Int[np.ndarray, " rows"]

    @property
    def prompt(self) -> Int[np.ndarray, " rows"]:
        return self.tokens - self.answer


def flat(column: pa.Array) -> np.ndarray:
    """All values of a column without missing ones, without copying."""
    return flatten(column).to_numpy(zero_copy_only=True)


def lengths(column: pa.Array) -> Int[np.ndarray, " rows"]:
    """The number of items of each row; 0 for a missing row."""
    found = column.value_lengths().fill_null(0)
    return found.to_numpy(zero_copy_only=False).astype(np.int64)


def split_rows(column: pa.Array, parts: int, tokens: Int[np.ndarray, " rows"]) -> list[np.ndarray]:
    """A view `[parts, tokens, ...]` of each row: one part per layer, or per layer and head."""
    values = flat(column)
    width = column.type.value_type
    items = (width.list_size,) if pa.types.is_fixed_size_list(width) else ()
    ends = np.cumsum(parts * tokens).tolist()
    values = values.reshape(-1, *items)
    return [
        values[end - parts * count : end].reshape(parts, count, *items)
        for end, count in zip(ends, tokens.tolist(), strict=True)
    ]


def as_fixed(values: np.ndarray) -> pa.Array:
    """One row for each of `[rows, ...]`."""
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(values.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def as_ragged(values: np.ndarray, counts: np.ndarray) -> pa.Array:
    """`counts[r]` items of `[items, ...]` for row r."""
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    items = as_fixed(values) if values.ndim > 1 else pa.array(np.ascontiguousarray(values))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)
