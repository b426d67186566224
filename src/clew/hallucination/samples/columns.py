"""Rows of a sample store: its columns, and record batches built from record batches of traces."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Float16, Float32, Int

from clew.base.texts import shortened
from clew.hallucination.samples.attention_graphs import (
    Edges,
    Nodes,
    build_graphs,
    edges_from_attention,
    head_bytes,
    head_columns,
    head_fields,
    leads_forward,
    no_edges,
    spread_edges,
    strongest_edges,
)
from clew.hallucination.samples.source import (
    ANSWER_SPANS,
    EDGES,
    KINDS,
    LAPLACIAN_TOP,
    MAPS,
    NUMBERS,
    PLACES,
    TEXTS,
    TOKEN_LABELS,
    Kind,
    Lengths,
    SampleShape,
    SourceShape,
    array_columns,
    as_fixed,
    count_answer,
    flat,
    lengths,
    split_rows,
)
from clew.hallucination.traces.schema import (
    ANSWER,
    ANSWER_HIDDEN,
    BY_HEAD,
    CONTEXT,
    CONTRAST_TRUE,
    EVALUATION,
    GROUP,
    TOKEN_ENDS,
    WITHOUT_ATTENTION,
    EvaluationShape,
    check_fields,
    check_sizes,
    evaluation_fields,
    fixed_type,
    id_fields,
    item_sizes,
    read_eigenvalues,
    read_evaluation,
    shaped,
)
from clew.storage.arrow import is_list
from clew.storage.manifest import Manifest

# The exponent of infinity and NaN.
_EXPONENTS: dict[int, Any] = {2: np.uint16(0x7C00), 4: np.uint32(0x7F800000)}


def row_bytes(kind: Kind, shape: SampleShape, sizes: Lengths) -> Int[np.ndarray, " rows"]:
    """The maximum bytes of samples with this many tokens, without the text of answers."""
    layers, tokens = shape.source.layers, sizes.tokens
    if kind == "sequences":
        return np.full(len(tokens), 2 * layers * shape.source.dim + 64)
    if kind == "answers":
        return answer_bytes(shape, sizes)
    if kind == "heads":
        return head_bytes(shape, sizes)
    # Token t has at most t + 1 edges.
    few = np.minimum(tokens, shape.top_k)
    edges = few * (few + 1) // 2 + (tokens - few) * shape.top_k
    return layers * (2 * shape.features * tokens + 10 * edges + 8) + 80


def measure_lengths(batch: pa.RecordBatch) -> Lengths:
    """The lengths of some traces; all tokens count as the answer if the prompt is unknown."""
    tokens = lengths(batch.column("tokens"))
    prompts = np.zeros(len(tokens), np.int64)
    if "prompt_length" in batch.schema.names:
        prompts = batch.column("prompt_length").to_numpy().astype(np.int64)
    return Lengths(tokens=tokens, answer=count_answer(tokens, prompts))


def sample_schema(kind: Kind, shape: SampleShape) -> pa.Schema:
    """The columns of a store of this kind."""
    layers, dim, features = shape.source.layers, shape.source.dim, shape.features
    common = [*id_fields(), pa.field("label", pa.float32()), pa.field("score", pa.float32())]
    if kind == "sequences":
        sequence = pa.list_(pa.list_(pa.float16(), dim), layers)
        return pa.schema([*common, shaped("sequence", sequence, layers, dim)])
    if kind == "answers":
        return pa.schema([*common, *answer_fields(shape)])
    if kind == "heads":
        return pa.schema([*common, *head_fields(shape)])
    counts = pa.list_(pa.int32(), layers)
    return pa.schema(
        [
            *common,
            shaped("nodes", pa.list_(pa.list_(pa.float16(), features)), "nodes", features),
            shaped("edge_source", pa.list_(pa.int32()), "edges"),
            shaped("edge_target", pa.list_(pa.int32()), "edges"),
            shaped("node_counts", counts, layers),
            shaped("edge_counts", counts, layers),
            shaped("edge_attr", pa.list_(pa.list_(pa.float16(), 1)), "edges", 1),
        ]
    )


def find_unusable(batch: pa.RecordBatch, shape: SampleShape) -> dict[int, str]:
    """The rows that cannot become samples, with the reason."""
    reasons: dict[int, str] = {}
    tokens = lengths(batch.column("tokens"))
    for name, wanted in _expected_lengths(batch, shape, tokens).items():
        column = batch.column(name)
        fits = column.is_valid().to_numpy(zero_copy_only=False) & (lengths(column) == wanted)
        for row in np.flatnonzero(~fits).tolist():
            reasons.setdefault(row, f"its {name} is missing or does not match its tokens")
    if reasons:
        return reasons
    maps = (MAPS,) if shape.from_maps else ()
    extras = [name for name in sorted(shape.source.extras) if _is_float(batch.column(name).type)]
    arrays = [name for name in array_columns(shape.source) if name != "edge_source"]
    for name in (*arrays, *extras, *maps):
        for row in _rows_where(_not_finite, batch.column(name)):
            reasons.setdefault(row, f"its {name} contains NaN or infinity")
    if not shape.source.attention_layers:
        return reasons
    nodes = Nodes(tokens=tokens, layers=shape.source.attention_layers)
    late = leads_forward(_stored_edges(batch), nodes)
    for row in np.flatnonzero(_any_of_row(late, nodes)).tolist() if late.any() else ():
        reasons.setdefault(row, "an edge leads from a token to an earlier one")
    return reasons


def _expected_lengths(
    batch: pa.RecordBatch, shape: SampleShape, tokens: Int[np.ndarray, " rows"]
) -> dict[str, Int[np.ndarray, " rows"]]:
    """The number of items that each row of the columns must have for its tokens."""
    layers, heads = shape.source.attention_layers, shape.source.heads
    wanted = {"nodes": shape.source.layers * tokens}
    wanted |= {name: layers * tokens for name in array_columns(shape.source) if name in EDGES}
    wanted["last_hidden"] = np.full(len(tokens), shape.source.layers)
    for name in ("attention_log_diagonal", "laplacian_diagonal"):
        if name in shape.source.extras:
            wanted[name] = layers * heads * tokens
    if MAPS in batch.schema.names:
        wanted[MAPS] = layers * heads * tokens**2
    return wanted


def build_rows(
    kind: Kind,
    batch: pa.RecordBatch,
    scores: Float32[np.ndarray, " rows"],
    labels: Float32[np.ndarray, " rows"],
    shape: SampleShape,
) -> pa.RecordBatch:
    """Samples of this kind from usable traces, one row each; arrays are shared if possible."""
    schema = sample_schema(kind, shape)
    columns = {field.name: batch.column(field.name) for field in id_fields()}
    columns |= {"label": pa.array(labels), "score": pa.array(scores)}
    if kind == "sequences":
        columns["sequence"] = batch.column("last_hidden")
    elif kind == "answers":
        columns |= answer_columns(batch, shape, measure_lengths(batch))
    elif kind == "heads":
        columns |= head_columns(batch, shape, measure_lengths(batch))
    else:
        columns |= _graph_columns(batch, shape)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _graph_columns(batch: pa.RecordBatch, shape: SampleShape) -> dict[str, pa.Array]:
    layers = shape.source.layers
    nodes = Nodes(tokens=lengths(batch.column("tokens")), layers=layers)
    attending = replace(nodes, layers=shape.source.attention_layers)
    if not attending.layers:
        edges = no_edges(nodes)
    elif shape.from_maps:
        edges = edges_from_attention(batch, attending, shape.source.heads, shape.top_k)
    else:
        edges = strongest_edges(_stored_edges(batch), shape.top_k)
    if 0 < attending.layers < layers:
        edges = spread_edges(edges, nodes, shape.source.with_attention)
    graphs = build_graphs(edges, nodes, shape.attn_threshold)
    ends = np.cumsum(graphs.edge_counts.sum(1, dtype=np.int64))
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    attr = pa.FixedSizeListArray.from_arrays(pa.array(graphs.weight), 1)
    node_counts = np.repeat(nodes.tokens, layers).astype(np.int32)
    return {
        "nodes": _cut_nodes(batch.column("nodes"), nodes, shape),
        "edge_source": pa.ListArray.from_arrays(offsets, pa.array(graphs.source)),
        "edge_target": pa.ListArray.from_arrays(offsets, pa.array(graphs.target)),
        "node_counts": pa.FixedSizeListArray.from_arrays(pa.array(node_counts), layers),
        "edge_counts": pa.FixedSizeListArray.from_arrays(
            pa.array(graphs.edge_counts.reshape(-1)), layers
        ),
        "edge_attr": pa.ListArray.from_arrays(offsets, attr),
    }


def _cut_nodes(column: pa.Array, nodes: Nodes, shape: SampleShape) -> pa.Array:
    """The first components of every node: the basis is ordered by variance."""
    stored = shape.source.node_dim
    if shape.features == stored:
        return column
    cut = np.ascontiguousarray(flat(column).reshape(-1, stored)[:, : shape.features])
    values = pa.FixedSizeListArray.from_arrays(pa.array(cut.reshape(-1)), shape.features)
    return pa.ListArray.from_arrays(pa.array(nodes.offsets, pa.int32()), values)


def _stored_edges(batch: pa.RecordBatch) -> Edges:
    k = batch.column("edge_source").type.value_type.list_size
    return Edges(
        source=flat(batch.column("edge_source")).reshape(-1, k),
        weight=flat(batch.column("edge_weight")).reshape(-1, k),
    )


def _not_finite(column: pa.Array) -> bool:
    values = flat(column)
    exponent = _EXPONENTS[values.itemsize]
    return bool(((values.view(exponent.dtype) & exponent) == exponent).any())


def _is_float(kind: pa.DataType) -> bool:
    while is_list(kind):
        kind = kind.value_type
    return pa.types.is_floating(kind)


def _rows_where(test: Callable[[pa.Array], bool], column: pa.Array) -> list[int]:
    """The rows for which the test is true. Usually there are none, which one test of the whole
    column shows."""
    if not test(column):
        return []
    return [row for row in range(len(column)) if test(column.slice(row, 1))]


def _any_of_row(mask: Bool[np.ndarray, " nodes"], nodes: Nodes) -> Bool[np.ndarray, " rows"]:
    total = np.concatenate([[0], np.cumsum(mask)])
    return np.diff(total[nodes.offsets]) > 0


_AS_THEY_ARE = (
    *("question", CONTEXT, GROUP, "category", "accepted_answers", "answer", "stop_reason"),
    "samples",
    *("prompt_length", "token_logprobs", "token_entropies", TOKEN_LABELS, *PLACES, "lookback"),
    *BY_HEAD,
    *EVALUATION,
)
_NODE_FIELDS = ("node_mean", "node_max", "node_prompt")
_TEXTS = {"accepted_answers": pa.list_(pa.string()), "samples": pa.list_(pa.string())}


def answer_fields(shape: SampleShape) -> list[pa.Field]:
    """The columns of answers/: those that all traces of the store have."""
    source = shape.source
    layers, features = source.layers, shape.features
    by_head = (source.attention_layers, source.heads)
    sizes = {
        "lookback": by_head,
        "log_diagonal_all": by_head,
        "log_diagonal_answer": by_head,
        "laplacian_top": (*by_head, source.eigenvalues),
        "laplacian_answer": by_head,
        "node_mean": (layers, features),
        "node_max": (layers, features),
        "node_prompt": (layers, features),
        "state_mean": (layers, source.dim),
    }
    evaluated = {one.name: one for one in evaluation_fields(source.evaluation, source.dim)}
    return [
        shaped(name, fixed_type(*sizes[name]), *sizes[name])
        if name in sizes
        else evaluated.get(name) or _plain_field(name)
        for name in _answer_names(shape)
    ]


def answer_columns(
    batch: pa.RecordBatch, shape: SampleShape, lengths: Lengths
) -> dict[str, pa.Array]:
    """The columns of answers/ from usable traces; an answer without tokens has means of 0."""
    names, has = set(_answer_names(shape)), shape.source.extras
    columns = {name: batch.column(name) for name in _AS_THEY_ARE if name in has}
    if "state_mean" in names:
        columns["state_mean"] = batch.column(ANSWER_HIDDEN)
    wanted = names - columns.keys()
    made = {name: values for name, values in _reduce(batch, shape, lengths) if name in wanted}
    return columns | {name: as_fixed(values) for name, values in made.items()}


def answer_bytes(shape: SampleShape, lengths: Lengths) -> Int[np.ndarray, " rows"]:
    """The disk space of the answers without their text."""
    kinds = [field.type for field in answer_fields(shape)]
    fixed = sum(_fixed_bytes(kind) for kind in kinds if pa.types.is_fixed_size_list(kind))
    of_token = 25 if ANSWER_SPANS in shape.source.extras else 9
    return fixed + of_token * lengths.answer + 128


def _answer_names(shape: SampleShape) -> Iterator[str]:
    """The names of the columns, in order."""
    has = shape.source.extras
    yield from (name for name in _AS_THEY_ARE if name in has)
    knows_border = "prompt_length" in has
    of_tokens = has if has.isdisjoint(BY_HEAD) else ()
    if "attention_log_diagonal" in of_tokens:
        yield from ["log_diagonal_all", *(["log_diagonal_answer"] if knows_border else [])]
    if "laplacian_diagonal" in of_tokens:
        yield from ["laplacian_top", *(["laplacian_answer"] if knows_border else [])]
    if knows_border:
        yield from _NODE_FIELDS
    if knows_border and ANSWER_HIDDEN in has:
        yield "state_mean"


def _plain_field(name: str) -> pa.Field:
    if name == TOKEN_LABELS:
        return shaped(name, pa.list_(pa.int8()), ANSWER)
    if name == TOKEN_ENDS:
        return shaped(name, pa.list_(pa.int32()), ANSWER)
    if name == ANSWER_SPANS:
        return shaped(name, pa.list_(pa.list_(pa.int32(), 3)), "spans", 3)
    if name.startswith("token_"):
        return shaped(name, pa.list_(pa.float32()), ANSWER)
    return pa.field(name, _TEXTS.get(name, pa.int32() if name == "prompt_length" else pa.string()))


def _fixed_bytes(kind: pa.DataType) -> int:
    count = 1
    while pa.types.is_fixed_size_list(kind):
        count, kind = count * kind.list_size, kind.value_type
    return count * kind.byte_width


def _reduce(
    batch: pa.RecordBatch, shape: SampleShape, lengths: Lengths
) -> Iterator[tuple[str, Float16[np.ndarray, "rows layers ..."]]]:
    """The computed arrays. Trace by trace, since NumPy's reductions over ragged segments take
    several times as long, especially for the maximum."""
    source, prompts = shape.source, lengths.prompt.tolist()
    attending, rows = source.attention_layers, len(prompts)
    heads, by_head = attending * source.heads, (rows, attending, -1)
    by_node = (rows, source.layers, shape.features)
    if "attention_log_diagonal" in source.extras:
        logs = split_rows(batch.column("attention_log_diagonal"), heads, lengths.tokens)
        whole, answer = zip(*map(_average_twice, logs, prompts), strict=True)
        yield "log_diagonal_all", np.stack(whole).reshape(by_head)
        yield "log_diagonal_answer", np.stack(answer).reshape(by_head)
    if "laplacian_diagonal" in source.extras:
        diagonals = split_rows(batch.column("laplacian_diagonal"), heads, lengths.tokens)
        top = np.stack([sort_largest(diagonal) for diagonal in diagonals])
        yield "laplacian_top", top.reshape(rows, attending, -1, LAPLACIAN_TOP)
        answer = [_average(d[:, p:], axis=1) for d, p in zip(diagonals, prompts, strict=True)]
        yield "laplacian_answer", np.stack(answer).reshape(by_head)
    nodes = split_rows(batch.column("nodes"), source.layers, lengths.tokens)
    reduced = [
        _reduce_nodes(n[..., : shape.features], p) for n, p in zip(nodes, prompts, strict=True)
    ]
    for name, values in zip(_NODE_FIELDS, zip(*reduced, strict=True), strict=True):
        yield name, np.stack(values).reshape(by_node)


def _average_twice(
    values: Float16[np.ndarray, "heads tokens"], prompt: int
) -> tuple[Float16[np.ndarray, " heads"], Float16[np.ndarray, " heads"]]:
    """The means over all tokens and over the answer's tokens."""
    wide = values.astype(np.float32)
    return _average(wide, axis=1), _average(wide[:, prompt:], axis=1)


def _average(values: Float[np.ndarray, "..."], axis: int) -> Float16[np.ndarray, "..."]:
    """The mean over an axis; 0 if there is nothing to average."""
    count = max(1, values.shape[axis])
    return (values.sum(axis, dtype=np.float32) / np.float32(count)).astype(np.float16)


def sort_largest(values: Float16[np.ndarray, "heads tokens"]) -> Float16[np.ndarray, "heads top"]:
    largest = np.zeros((len(values), LAPLACIAN_TOP), np.float16)
    falling = np.sort(values, axis=1)[:, ::-1][:, :LAPLACIAN_TOP]
    largest[:, : falling.shape[1]] = falling
    return largest


def _reduce_nodes(
    nodes: Float16[np.ndarray, "layers tokens features"], prompt: int
) -> tuple[Float16[np.ndarray, "layers features"], ...]:
    """Mean and maximum over the answer's tokens, and the prompt's last token."""
    answer = nodes[:, prompt:].astype(np.float32)
    none = np.zeros_like(nodes, shape=(nodes.shape[0], nodes.shape[2]))
    largest = answer.max(axis=1).astype(np.float16) if answer.shape[1] else none
    return _average(answer, axis=1), largest, nodes[:, prompt - 1] if prompt else none


_PER_HEAD = ("lookback", "log_diagonal_all", "laplacian_answer")


def check_samples(schema: pa.Schema, manifest: Manifest) -> tuple[str, ...]:
    """Raises ValueError if a shard does not have the columns of its kind: an id is missing, or a
    column has another type or shape than the sizes of the store require. Returns the columns that
    have a value in every row."""
    kind = next((kind for kind in KINDS if kind == manifest.kind), None)
    if kind is None:
        raise ValueError(f"contains {shortened(manifest.kind)}, not samples")
    sizes = _read_sizes(kind, schema)
    if kind != "heads":
        check_sizes(dict(zip(("layers", "dim", "heads", "features"), sizes, strict=True)), manifest)
    others = read_eigenvalues(schema), read_evaluation(schema)
    without = tuple(manifest.settings.get(WITHOUT_ATTENTION, ()))
    fields = {field.name: field for field in _fields(kind, *sizes, *others, without)}
    [width] = item_sizes(schema, "edge_attr", 1)
    if kind == "graphs" and width:  # converted graphs may have any number of features per edge
        attr = pa.list_(pa.list_(pa.float16(), width))
        fields["edge_attr"] = shaped("edge_attr", attr, "edges", width)
    check_fields(schema, fields.values())
    return tuple(field.name for field in id_fields())


def _read_sizes(kind: Kind, schema: pa.Schema) -> tuple[int, int, int, int]:
    """Layers, states, heads and features, from the columns that have them."""

    def first(axis: int, *names: str) -> int:
        sizes = (item_sizes(schema, name, 2)[axis] for name in names)
        return next(filter(None, sizes), 0)

    [features] = item_sizes(schema, "nodes", 1)
    if kind == "graphs":
        return item_sizes(schema, "node_counts", 1)[0], 0, 0, features
    if kind == "heads":
        return features, 1, 1, 1
    return (
        first(0, "sequence", "node_mean", "state_mean", *_PER_HEAD),
        first(1, "sequence", "state_mean", CONTRAST_TRUE),
        first(1, *_PER_HEAD),
        first(1, "node_mean", "node_max", "node_prompt"),
    )


def _evaluation_names(evaluation: EvaluationShape, dim: int) -> list[str]:
    return [field.name for field in evaluation_fields(evaluation, dim)]


@cache
def _fields(
    kind: Kind,
    layers: int,
    dim: int,
    heads: int,
    features: int,
    eigenvalues: int,
    evaluation: EvaluationShape,
    without_attention: tuple[int, ...],
) -> tuple[pa.Field, ...]:
    source = SourceShape(
        layers=layers,
        dim=dim,
        node_dim=features,
        edges_per_token=0,
        heads=heads,
        extras=frozenset(
            (*TEXTS, *NUMBERS, *BY_HEAD, TOKEN_LABELS, *PLACES, *_evaluation_names(evaluation, dim))
        ),
        evaluation=evaluation,
        eigenvalues=eigenvalues,
        without_attention=without_attention,
    )
    shape = SampleShape(source=source, features=features, top_k=0, attn_threshold=0)
    return tuple(sample_schema(kind, shape))
