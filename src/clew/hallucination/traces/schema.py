"""The columns of a trace, their Arrow types and shapes, and record batches built from them. Array
columns carry their shape in the field's metadata ("layers,tokens,64" with the numbers filled in),
so that a reader needs only the file."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
import pyarrow as pa

from clew.base.texts import shortened
from clew.base.typed_json import Bounds, read_as
from clew.storage.arrow import is_list
from clew.storage.manifest import Manifest

Keep = Literal["compact", "full"]

BASIS_NAME = "basis.arrow"
SHAPE_KEY = b"shape"
# In the metadata of the columns whose vectors are stored in 8 bits per value (see `packed`); the
# setting of a store that has them, and the values that share a scale. Stores started before have
# float16 instead, and continue so.
ENCODING_KEY, Q8 = b"encoding", b"q8"
PACKED, BLOCK = "packed", 64
# In the schema of models whose layers do not all have attention: the kind of each layer, and which
# have attention.
KINDS_KEY = b"layers"
# The setting of their samples that names the layers without attention.
WITHOUT_ATTENTION = "without_attention"
TOKENS = "tokens"
ANSWER = "answer"
# Stores started before this column existed continue without it.
ANSWER_HIDDEN = "answer_hidden"
# What is stored per head of the attention's diagonal and its Laplacian. Stores started before these
# columns existed have both for every token instead, and continue so.
LOG_ALL, LOG_ANSWER = "log_diagonal_all", "log_diagonal_answer"
SPECTRUM, LAPLACIAN_ANSWER = "laplacian_top", "laplacian_answer"
BY_HEAD = (LOG_ALL, LOG_ANSWER, SPECTRUM, LAPLACIAN_ANSWER)
DIAGONALS = ("attention_log_diagonal", "laplacian_diagonal")
# The setting of a store that has them, and how many of the largest eigenvalues: no method detects
# better with more.
EIGENVALUES, MOST_EIGENVALUES = "eigenvalues", 25
# Only in stores of questions that have contexts.
CONTEXT = "context"
# Only in stores of questions that ask for several facts: the part that each accepted answer is
# accepted for, and where each token of the answer ends in its text, in characters.
ANSWER_PARTS, TOKEN_ENDS = "answer_parts", "token_ends"
# Only in stores of answers that were given and read, not generated: what their file says of each.
# The score is 1 for a correct answer and 0 for a hallucinated one, null without a label; a span is
# start, end and label: [start, end) in characters of the answer, 1 (hallucinated), 0 or -1
# (unsure), and the spans are null for an answer that is labeled as a whole only; `group` is what
# must not be split, such as a document.
GIVEN_SCORE, GIVEN_SPANS, GROUP = "given_score", "given_spans", "group"
# The setting of manifests and detectors that says so; those of generated answers do not have it.
ANSWERS_KEY, GIVEN = "answers", "given"
# Only in stores with self-evaluation: the probability that the model gives to its answer being
# true, by phrasing, and its states after the replies that it is true and that it is false.
P_TRUE, CONTRAST_TRUE, CONTRAST_FALSE = "p_true", "contrast_true", "contrast_false"
# Only in stores that compare sampled answers: the probability that one of them entails another.
ENTAILMENT = "entailment"
# The settings of manifests that describe self-evaluation and entailment.
EVALUATION_KEY, ENTAILMENT_KEY = "self_evaluation", "entailment"
EVALUATION = (P_TRUE, CONTRAST_TRUE, CONTRAST_FALSE, ENTAILMENT)
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, kw_only=True)
class TraceShape:
    """The sizes shared by all traces of a store. Attention is stored of the layers that have it,
    all but those `without_attention` (Mamba, linear attention, convolution)."""

    layers: Annotated[int, Bounds(least=1, most=1024)]
    dim: Annotated[int, Bounds(least=1, most=2**20)]
    heads: Annotated[int, Bounds(least=0, most=4096)]
    node_dim: Annotated[int, Bounds(least=0, most=2**20)]
    edges_per_token: Annotated[int, Bounds(least=0, most=2**20)]
    without_attention: tuple[int, ...] = ()

    @property
    def with_attention(self) -> tuple[int, ...]:
        """The layers that have attention."""
        return tuple(n for n in range(self.layers) if n not in self.without_attention)

    @property
    def attention_layers(self) -> int:
        return len(self.with_attention)

    def describe(self) -> dict[str, Any]:
        """As files have it; nothing is said of layers if all have attention."""
        sizes = asdict(self)
        return {name: size for name, size in sizes.items() if size != ()}


@dataclass(frozen=True, kw_only=True)
class EvaluationShape:
    """The sizes of what a model says about its own answers; 0 for what a store does not have."""

    phrasings: int = 0
    layers: int = 0
    draws: int = 0


NO_EVALUATION = EvaluationShape()


def id_fields() -> list[pa.Field]:
    return [
        pa.field("global_example_id", pa.int64()),
        pa.field("example_id", pa.int32()),
        pa.field("batch_number", pa.int32()),
        pa.field("question_id", pa.string()),
    ]


def text_fields() -> list[pa.Field]:
    return [
        pa.field("question", pa.string()),
        pa.field("category", pa.string()),
        pa.field("accepted_answers", pa.list_(pa.string())),
        pa.field("answer", pa.string()),
        pa.field("stop_reason", pa.string()),
        pa.field("tokens", pa.list_(pa.int32())),
        pa.field("prompt_length", pa.int32()),
    ]


def probability_fields() -> list[pa.Field]:
    return [
        _ragged("token_logprobs", pa.float32(), ANSWER),
        _ragged("token_entropies", pa.float32(), ANSWER),
    ]


def reduced_fields(
    shape: TraceShape, eigenvalues: int = MOST_EIGENVALUES, *, packed: bool = False
) -> list[pa.Field]:
    """What `keep="compact"` stores of the hidden states and the attention; 0 `eigenvalues` mean the
    diagonals of every token instead, `packed` states in 8 bits."""
    layers, heads, k = shape.layers, shape.heads, shape.edges_per_token
    of_states = [
        _fixed("last_hidden", layers, shape.dim),
        _fixed(ANSWER_HIDDEN, layers, shape.dim),
        _ragged("nodes", pa.list_(pa.float16(), shape.node_dim), layers, TOKENS, shape.node_dim),
    ]
    if packed:
        of_states = [_packed(field) for field in of_states]
    layers = shape.attention_layers
    if not layers:
        return of_states
    of_heads = [
        _fixed(LOG_ALL, layers, heads),
        _fixed(LOG_ANSWER, layers, heads),
        _fixed(SPECTRUM, layers, heads, eigenvalues),
        _fixed(LAPLACIAN_ANSWER, layers, heads),
    ]
    of_tokens = [_ragged(name, pa.float16(), layers, heads, TOKENS) for name in DIAGONALS]
    return [
        *of_states,
        _ragged("edge_source", pa.list_(pa.uint16(), k), layers, TOKENS, k),
        _ragged("edge_weight", pa.list_(pa.float16(), k), layers, TOKENS, k),
        *(of_heads if eigenvalues else of_tokens),
        _fixed("lookback", layers, heads),
    ]


def given_fields() -> list[pa.Field]:
    return [
        pa.field(GIVEN_SCORE, pa.float32()),
        pa.field(GIVEN_SPANS, pa.list_(pa.list_(pa.int32(), 3))),
        pa.field(GROUP, pa.string()),
    ]


def evaluation_fields(evaluation: EvaluationShape, dim: int) -> list[pa.Field]:
    """What the model says about its own answers."""
    fields = []
    if evaluation.phrasings:
        kind = pa.list_(pa.float32(), evaluation.phrasings)
        fields.append(shaped(P_TRUE, kind, evaluation.phrasings))
    if evaluation.layers:
        fields += [_fixed(name, evaluation.layers, dim) for name in (CONTRAST_TRUE, CONTRAST_FALSE)]
    if evaluation.draws:
        draws = evaluation.draws
        kind = pa.list_(pa.list_(pa.float32(), draws), draws)
        fields.append(shaped(ENTAILMENT, kind, draws, draws))
    return fields


def full_fields(shape: TraceShape) -> list[pa.Field]:
    """What `keep="full"` stores in addition: every hidden state and every attention map."""
    layers, with_attention, dim = shape.layers, shape.attention_layers, shape.dim
    maps = (with_attention, shape.heads, TOKENS, TOKENS)
    return [
        _ragged("hidden_states", pa.list_(pa.float16(), dim), layers, TOKENS, dim, large=True),
        *([_ragged("attentions", pa.float16(), *maps, large=True)] if with_attention else []),
    ]


def trace_schema(
    shape: TraceShape,
    keep: Keep,
    *,
    answer_hidden: bool = True,
    eigenvalues: int = MOST_EIGENVALUES,
    packed: bool = False,
    samples: bool = False,
    context: bool = False,
    parts: bool = False,
    given: bool = False,
    evaluation: EvaluationShape = NO_EVALUATION,
    kinds: Sequence[str] = (),
) -> pa.Schema:
    """The schema of the shards that `clew extract` writes; `samples`, `context`, `parts` and
    `given` say whether there are columns for sampled answers, for the texts that questions are
    about, for the parts of answers, and for what a file says of answers that were given. `kinds`
    are those of the layers, which are in the metadata unless all have attention."""
    fields = [*id_fields(), *text_fields(), *probability_fields()]
    if context:
        fields.append(pa.field(CONTEXT, pa.string()))
    if parts:
        fields.append(pa.field(ANSWER_PARTS, pa.list_(pa.string())))
    if parts or given:
        fields.append(_ragged(TOKEN_ENDS, pa.int32(), ANSWER))
    if given:
        fields += given_fields()
    if samples:
        fields.append(pa.field("samples", pa.list_(pa.string())))
    fields += evaluation_fields(evaluation, shape.dim)
    reduced = reduced_fields(shape, eigenvalues, packed=packed)
    fields += [field for field in reduced if answer_hidden or field.name != ANSWER_HIDDEN]
    if keep == "full":
        fields += full_fields(shape)
    if not shape.without_attention:
        return pa.schema(fields)
    layers = [
        {"kind": kind, "attention": layer not in shape.without_attention}
        for layer, kind in enumerate(kinds or ["unknown"] * shape.layers)
    ]
    return pa.schema(fields, metadata={KINDS_KEY: json.dumps(layers).encode()})


def check_traces(schema: pa.Schema, manifest: Manifest) -> tuple[str, ...]:
    """Raises ValueError if a shard does not have the columns of traces: one is missing, or has
    another type or shape than the sizes of the store require. Returns the columns that have a value
    in every row."""
    shape = read_shape(schema)
    check_sizes(shape.describe(), manifest)
    fields = _all_fields(shape, read_eigenvalues(schema), read_evaluation(schema))
    check_fields(schema, fields, required=text_fields())
    return *(field.name for field in id_fields()), "tokens"


@cache
def _all_fields(
    shape: TraceShape, eigenvalues: int, evaluation: EvaluationShape
) -> tuple[pa.Field, ...]:
    texts = (pa.field(name, pa.list_(pa.string())) for name in ("samples", "tokens_decoded"))
    every: dict[str, Any] = {"context": True, "parts": True, "given": True}
    schema = trace_schema(shape, "full", eigenvalues=eigenvalues, evaluation=evaluation, **every)
    return (*schema, *texts, *(one for one in reduced_fields(shape, 0) if one.name in DIAGONALS))


def read_evaluation(schema: pa.Schema) -> EvaluationShape:
    """The sizes of what the model says about its answers, from the types of a shard's columns. A
    column that is there but has no sizes counts as one of size 1, which it then is not."""

    def size(name: str, count: int) -> int:
        return item_sizes(schema, name, count)[0] or int(name in schema.names)

    return EvaluationShape(
        phrasings=size(P_TRUE, 1),
        layers=max(size(CONTRAST_TRUE, 2), size(CONTRAST_FALSE, 2)),
        draws=size(ENTAILMENT, 2),
    )


def read_eigenvalues(schema: pa.Schema) -> int:
    """How many eigenvalues per head the answers of a shard have; 1 if there is no such column, or
    one of another shape, which it then is not."""
    return item_sizes(schema, SPECTRUM, 3)[2] or 1


def read_shape(schema: pa.Schema) -> TraceShape:
    """The sizes of the traces in a shard, from the types of its columns; 0 for those it does not
    have."""
    layers, dim = item_sizes(schema, "last_hidden", 2)
    return TraceShape(
        layers=layers,
        dim=dim,
        heads=_count_heads(schema),
        node_dim=item_sizes(schema, "nodes", 1)[0],
        edges_per_token=item_sizes(schema, "edge_source", 1)[0],
        without_attention=_read_without_attention(schema, layers),
    )


def read_kinds(schema: pa.Schema) -> list[dict[str, Any]]:
    """The kind of each layer and whether it has attention; empty if all have it. Raises ValueError
    if that is not what the schema says."""
    text = (schema.metadata or {}).get(KINDS_KEY)
    return [] if text is None else read_as(list[_LayerKind], json.loads(text), "layers")


class _LayerKind(TypedDict):
    kind: str
    attention: bool


def _read_without_attention(schema: pa.Schema, layers: int) -> tuple[int, ...]:
    kinds = read_kinds(schema)
    if kinds and len(kinds) != layers:
        raise ValueError(f"has {layers} layers, but names the kinds of {len(kinds)}")
    return tuple(layer for layer, kind in enumerate(kinds) if not kind["attention"])


def _count_heads(schema: pa.Schema) -> int:
    """From the shape of any per-head column: layers, heads, ..."""
    for name in ("lookback", "attentions", LOG_ALL, *DIAGONALS):
        if name in schema.names:
            shape = _shape_text(schema.field(name)).split(",")
            return int(shape[1]) if len(shape) > 1 and _NUMBER.fullmatch(shape[1]) else 0
    return 0


def item_sizes(schema: pa.Schema, name: str, count: int) -> tuple[int, ...]:
    """The sizes of a column's items, `count` of them, from the outside in; zeros if the column does
    not have that many."""
    sizes = _fixed_sizes(plain_field(schema.field(name)).type) if name in schema.names else ()
    return sizes if len(sizes) == count else (0,) * count


def _fixed_sizes(kind: pa.DataType) -> tuple[int, ...]:
    sizes: list[int] = []
    while is_list(kind):
        sizes += [kind.list_size] if pa.types.is_fixed_size_list(kind) else []
        kind = kind.value_type
    return tuple(sizes)


def check_sizes(found: Mapping[str, Any], manifest: Manifest) -> None:
    """Raises ValueError if the manifest names other sizes than those found."""
    expected = manifest.settings.get("shape", {})
    for name, size in found.items():
        if size and _as_list(expected.get(name, size)) != _as_list(size):
            raise ValueError(f"has {name}={size}, but the manifest says {expected[name]}")


def _as_list(size: Any) -> Any:
    return list(size) if isinstance(size, tuple) else size


def check_fields(
    schema: pa.Schema, fields: Iterable[pa.Field], *, required: Iterable[pa.Field] = ()
) -> None:
    """Raises ValueError if the schema lacks an id or a required column, or has one whose type or
    shape is not that of the field of its name. What is not in `fields` is not looked at."""
    for field in (*id_fields(), *required):
        if field.name not in schema.names:
            raise ValueError(f'has no column "{field.name}"')
    for field in fields:
        if field.name not in schema.names:
            continue
        found = plain_field(schema.field(field.name))
        if found.type != field.type or 0 in _fixed_sizes(found.type):
            raise ValueError(
                f'has the column "{field.name}" with the type {shortened(str(found.type))}, not '
                f"{field.type}"
            )
        if _shape_text(found) != _shape_text(field):
            raise ValueError(
                f'has the column "{field.name}" with the shape {shortened(_shape_text(found))}, '
                f"not {_shape_text(field)}"
            )


def _shape_text(field: pa.Field) -> str:
    return (field.metadata or {}).get(SHAPE_KEY, b"").decode(errors="replace")


def resolve_shape(field: pa.Field, tokens: int, answer: int) -> tuple[int, ...] | None:
    """The shape of a column for a trace with that many tokens, or None if it has none."""
    metadata = field.metadata or {}
    if SHAPE_KEY not in metadata:
        return None
    sizes = {TOKENS: tokens, ANSWER: answer}
    parts = metadata[SHAPE_KEY].decode().split(",")
    return tuple(sizes[part] if part in sizes else int(part) for part in parts)


def stored_shape(field: pa.Field, tokens: int, answer: int) -> tuple[int, ...] | None:
    """As `resolve_shape`, of the numbers that are stored."""
    shape = resolve_shape(field, tokens, answer)
    return (*shape[:-1], _fixed_sizes(field.type)[-1]) if shape and is_packed(field) else shape


def is_packed(field: pa.Field) -> bool:
    return bool((field.metadata or {}).get(ENCODING_KEY) == Q8)


def plain_field(field: pa.Field) -> pa.Field:
    """A column as it would be without packing."""
    if not is_packed(field):
        return field
    kind, metadata = field.type, {SHAPE_KEY: field.metadata[SHAPE_KEY]}
    size = int(_shape_text(field).rpartition(",")[2])
    plain = pa.list_(pa.float16(), size)
    fixed = pa.types.is_fixed_size_list(kind)
    plain = pa.field(
        field.name, pa.list_(plain, kind.list_size) if fixed else pa.list_(plain), metadata=metadata
    )
    if _packed(plain).type != kind:
        raise ValueError(
            f'has the column "{field.name}" with the type {shortened(str(kind))}, not '
            f"{_packed(plain).type}"
        )
    return plain


def plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([plain_field(field) for field in schema], schema.metadata)


def _packed(field: pa.Field) -> pa.Field:
    """A column of float16 vectors in 8 bits per value."""
    kind = field.type
    size = kind.value_type.list_size
    vector = pa.list_(pa.uint8(), size + 2 * -(-size // BLOCK))
    fixed = pa.types.is_fixed_size_list(kind)
    stored = pa.list_(vector, kind.list_size) if fixed else pa.list_(vector)
    return pa.field(field.name, stored, metadata={**field.metadata, ENCODING_KEY: Q8})


def shaped(name: str, kind: pa.DataType, *shape: int | str) -> pa.Field:
    """An array column: its Arrow type, and its shape in the metadata."""
    return pa.field(name, kind, metadata={SHAPE_KEY: ",".join(map(str, shape)).encode()})


def fixed_type(*shape: int) -> pa.DataType:
    """The type of a column whose rows are float16 of that shape."""
    kind = pa.float16()
    for size in reversed(shape):
        kind = pa.list_(kind, size)
    return kind


def _fixed(name: str, *shape: int) -> pa.Field:
    return shaped(name, fixed_type(*shape), *shape)


def _ragged(name: str, value: pa.DataType, *shape: int | str, large: bool = False) -> pa.Field:
    return shaped(name, pa.large_list(value) if large else pa.list_(value), *shape)


def build_record_batch(
    schema: pa.Schema,
    columns: Mapping[str, Any],
    token_counts: Sequence[int],
    answer_counts: Sequence[int],
) -> pa.RecordBatch:
    """A record batch of `len(token_counts)` traces.

    `columns` maps names to a sequence of one value per trace or, for array fields, to one flat
    NumPy array with the traces concatenated. Missing columns are null.
    """
    rows = len(token_counts)
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(values, np.ndarray) and _shape_text(field):
            counts = zip(token_counts, answer_counts, strict=True)
            sizes = [math.prod(stored_shape(field, *count) or ()) for count in counts]
            arrays.append(_build_list(field, values.reshape(-1), sizes))
        else:
            arrays.append(pa.array(values, type=field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _build_list(field: pa.Field, flat: np.ndarray, sizes: Sequence[int]) -> pa.Array:
    kind, values, inner = field.type, pa.array(flat), _fixed_sizes(field.type)
    if sum(sizes) != len(flat):
        raise ValueError(f"column {field.name}: {len(flat)} values, expected {sum(sizes)}")
    for size in reversed(inner):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    if pa.types.is_fixed_size_list(kind):
        return values
    offsets = np.concatenate([[0], np.cumsum(np.asarray(sizes, np.int64) // math.prod(inner))])
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
