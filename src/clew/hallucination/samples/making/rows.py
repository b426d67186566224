"""Rows of a sample store: its columns, and record batches built from record batches of traces."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32, Int

from clew.hallucination.samples.making.answers import answer_bytes, answer_columns, answer_fields
from clew.hallucination.samples.making.config import ARRAY_COLUMNS, MAPS, Kind, Lengths, SampleShape
from clew.hallucination.samples.making.flat import flat, lengths
from clew.hallucination.samples.making.graphs import (
    Edges,
    Nodes,
    build_graphs,
    edges_from_attention,
    head_bytes,
    head_columns,
    head_fields,
    leads_forward,
    strongest_edges,
)
from clew.hallucination.samples.making.source import count_answer
from clew.hallucination.traces.schema import id_fields, shaped
from clew.storage.arrow import is_list

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
    nodes = Nodes(tokens=tokens, layers=shape.source.layers)
    maps = (MAPS,) if shape.from_maps else ()
    extras = [name for name in sorted(shape.source.extras) if _is_float(batch.column(name).type)]
    for name in ("last_hidden", "nodes", "edge_weight", *extras, *maps):
        for row in _rows_where(_not_finite, batch.column(name)):
            reasons.setdefault(row, f"its {name} contains NaN or infinity")
    late = leads_forward(_stored_edges(batch), nodes)
    for row in np.flatnonzero(_any_of_row(late, nodes)).tolist() if late.any() else ():
        reasons.setdefault(row, "an edge leads from a token to an earlier one")
    return reasons


def _expected_lengths(
    batch: pa.RecordBatch, shape: SampleShape, tokens: Int[np.ndarray, " rows"]
) -> dict[str, Int[np.ndarray, " rows"]]:
    """The number of items that each row of the columns must have for its tokens."""
    layers, heads = shape.source.layers, shape.source.heads or 0
    wanted = {name: layers * tokens for name in ARRAY_COLUMNS}
    wanted["last_hidden"] = np.full(len(tokens), layers)
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
    if shape.from_maps:
        assert shape.source.heads is not None  # checked before anything was written
        edges = edges_from_attention(batch, nodes, shape.source.heads, shape.top_k)
    else:
        edges = strongest_edges(_stored_edges(batch), shape.top_k)
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
