"""Rows of a sample store: its columns, and record batches cut from record batches of traces."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32

from clew.features.config import Kind
from clew.features.graphs import (
    Edges,
    Nodes,
    build_graphs,
    edges_from_attention,
    leads_forward,
    strongest_edges,
)
from clew.features.source import SourceShape
from clew.shards.reader import is_list
from clew.traces.schema import id_fields, shaped

# The exponent of a float16 that is infinite or not a number.
_EXPONENT = np.uint16(0x7C00)
_ARRAY_COLUMNS = ("last_hidden", "nodes", "edge_source", "edge_weight")


@dataclass(frozen=True, kw_only=True)
class SampleShape:
    """What of the stored traces goes into the samples."""

    source: SourceShape
    features: int
    top_k: int
    attn_threshold: float

    @property
    def from_maps(self) -> bool:
        """Whether more edges are asked for than were stored, so that the maps must give them."""
        return self.top_k > self.source.edges_per_token

    def columns(self) -> list[str]:
        """The trace columns to read."""
        ids = [field.name for field in id_fields()]
        return [*ids, "tokens", *_ARRAY_COLUMNS, *(["attentions"] if self.from_maps else [])]

    def row_bytes(self, kind: Kind, tokens: np.ndarray) -> np.ndarray:
        """The most bytes that samples with so many tokens take."""
        layers = self.source.layers
        if kind == "sequences":
            return np.full(len(tokens), 2 * layers * self.source.dim + 64)
        # Token t has at most t + 1 edges.
        few = np.minimum(tokens, self.top_k)
        edges = few * (few + 1) // 2 + (tokens - few) * self.top_k
        return layers * (2 * self.features * tokens + 10 * edges + 8) + 80


def sample_schema(kind: Kind, shape: SampleShape) -> pa.Schema:
    """The columns of a store of that kind."""
    layers, dim, features = shape.source.layers, shape.source.dim, shape.features
    common = [*id_fields(), pa.field("label", pa.float32()), pa.field("score", pa.float32())]
    if kind == "sequences":
        sequence = pa.list_(pa.list_(pa.float16(), dim), layers)
        return pa.schema([*common, shaped("sequence", sequence, layers, dim)])
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
    """The rows that no sample can be made of, with the reason."""
    layers = shape.source.layers
    reasons: dict[int, str] = {}
    tokens = _lengths(batch.column("tokens"))
    for name in _ARRAY_COLUMNS:
        column = batch.column(name)
        fits = column.is_valid().to_numpy(zero_copy_only=False)
        if name != "last_hidden":
            fits = fits & (_lengths(column) == layers * tokens)
        for row in np.flatnonzero(~fits).tolist():
            reasons.setdefault(row, f"its {name} is missing or does not fit its tokens")
    if reasons:
        return reasons
    nodes = Nodes(tokens=tokens, layers=layers)
    maps = ("attentions",) if shape.from_maps else ()
    for name in ("last_hidden", "nodes", "edge_weight", *maps):
        for row in _rows_where(_not_finite, batch.column(name)):
            reasons.setdefault(row, f"its {name} holds NaN or infinity")
    late = leads_forward(_stored_edges(batch), nodes)
    for row in np.flatnonzero(_any_of_row(late, nodes)).tolist() if late.any() else ():
        reasons.setdefault(row, "an edge leads from a token to an earlier one")
    return reasons


def build_rows(
    kind: Kind,
    batch: pa.RecordBatch,
    scores: Float32[np.ndarray, " rows"],
    labels: Float32[np.ndarray, " rows"],
    shape: SampleShape,
) -> pa.RecordBatch:
    """Samples of that kind from usable traces, one row each; arrays are shared where they can."""
    schema = sample_schema(kind, shape)
    columns = {field.name: batch.column(field.name) for field in id_fields()}
    columns |= {"label": pa.array(labels), "score": pa.array(scores)}
    if kind == "sequences":
        columns["sequence"] = batch.column("last_hidden")
    else:
        columns |= _graph_columns(batch, shape)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _graph_columns(batch: pa.RecordBatch, shape: SampleShape) -> dict[str, pa.Array]:
    layers = shape.source.layers
    nodes = Nodes(tokens=_lengths(batch.column("tokens")), layers=layers)
    if shape.from_maps:
        assert shape.source.heads is not None  # asked before anything was written
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
    cut = np.ascontiguousarray(_flat(column).reshape(-1, stored)[:, : shape.features])
    values = pa.FixedSizeListArray.from_arrays(pa.array(cut.reshape(-1)), shape.features)
    return pa.ListArray.from_arrays(pa.array(nodes.offsets, pa.int32()), values)


def _stored_edges(batch: pa.RecordBatch) -> Edges:
    k = batch.column("edge_source").type.value_type.list_size
    return Edges(
        source=_flat(batch.column("edge_source")).reshape(-1, k),
        weight=_flat(batch.column("edge_weight")).reshape(-1, k),
    )


def _flat(column: pa.Array) -> np.ndarray:
    while is_list(column.type):
        column = column.flatten()
    return column.to_numpy(zero_copy_only=True)


def _lengths(column: pa.Array) -> np.ndarray:
    lengths = column.value_lengths().fill_null(0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)


def _not_finite(column: pa.Array) -> bool:
    values = _flat(column).view(np.uint16)
    return bool(((values & _EXPONENT) == _EXPONENT).any())


def _rows_where(test: Callable[[pa.Array], bool], column: pa.Array) -> list[int]:
    """Nearly always none, and then one look at the whole column tells."""
    if not test(column):
        return []
    return [row for row in range(len(column)) if test(column.slice(row, 1))]


def _any_of_row(mask: Bool[np.ndarray, " nodes"], nodes: Nodes) -> Bool[np.ndarray, " rows"]:
    total = np.concatenate([[0], np.cumsum(mask)])
    return np.diff(total[nodes.offsets]) > 0
