"""Attention as graphs: one per layer from the stored edges, or one over all heads from full maps.

Per layer, nodes are the tokens of all layers, layer by layer; over all heads, nodes are the tokens.
An edge goes from the attended token (source) to the attending token (target), both numbered within
the sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float16, Int, Int32, UInt16

from clew.hallucination.samples.source import MAPS, Lengths, SampleShape, as_ragged
from clew.hallucination.traces.schema import TOKENS, shaped
from clew.storage.reader import read_value

# An edge is kept if the attention of some head is at least this.
HEAD_THRESHOLD = 0.05
_MARKS = 2  # whether the source is in the prompt, whether it is in the answer
# Weights are never negative, so their bits compare like integers.
_SIGN = np.uint16(0x8000)


@dataclass(frozen=True, kw_only=True)
class Edges:
    """The stored edges of some traces: `k` per token and layer, flat, trace by trace."""

    source: Int[np.ndarray, "nodes k"]
    weight: Float16[np.ndarray, "nodes k"]


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The position of every node (token of a layer) of some traces, trace by trace."""

    tokens: Int[np.ndarray, " rows"]
    layers: int

    @property
    def counts(self) -> Int[np.ndarray, " rows"]:
        return self.tokens * self.layers

    @property
    def offsets(self) -> Int[np.ndarray, " rows_and_one"]:
        return np.concatenate([[0], np.cumsum(self.counts)])

    def in_sample(self) -> Int32[np.ndarray, " nodes"]:
        """Each node's number in its own sample."""
        starts = np.repeat(self.offsets[:-1], self.counts)
        return (np.arange(self.offsets[-1]) - starts).astype(np.int32)

    def in_layer(self) -> Int32[np.ndarray, " nodes"]:
        """Each node's number in its own layer: the token's."""
        return self.in_sample() % np.repeat(self.tokens, self.counts).astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """The edges of some samples, sorted by sample, layer and target, and how many there are."""

    source: Int32[np.ndarray, " edges"]
    target: Int32[np.ndarray, " edges"]
    weight: Float16[np.ndarray, " edges"]
    edge_counts: Int32[np.ndarray, "rows layers"]


def build_graphs(edges: Edges, nodes: Nodes, attn_threshold: float) -> Graphs:
    """Keep the edges with a weight above 0 that reach the threshold."""
    kept = select_edges(edges, attn_threshold)
    places = np.flatnonzero(kept)
    at = places // kept.shape[1]
    number, token = nodes.in_sample(), nodes.in_layer()
    return Graphs(
        source=edges.source.reshape(-1)[places].astype(np.int32) + (number - token)[at],
        target=number[at],
        weight=edges.weight.reshape(-1)[places],
        edge_counts=_count_by_layer(kept, nodes),
    )


def select_edges(edges: Edges, attn_threshold: float) -> Bool[np.ndarray, "nodes k"]:
    kept = np.asarray(edges.weight > 0)
    if attn_threshold > 0:
        kept &= edges.weight >= np.float32(attn_threshold)
    return kept


def leads_forward(edges: Edges, nodes: Nodes) -> Bool[np.ndarray, " nodes"]:
    """The nodes with an edge from a later token, which causal attention cannot have."""
    late = np.asarray(edges.source > nodes.in_layer()[:, None])
    return np.any(late & np.asarray(edges.weight > 0), axis=1)


def strongest_edges(edges: Edges, k: int) -> Edges:
    """The k strongest edges of each node; sorted here unless they already are, as in captures."""
    weight = edges.weight
    if k >= weight.shape[1]:
        return edges
    if (weight[:, :-1] >= weight[:, 1:]).all():
        return Edges(source=edges.source[:, :k], weight=weight[:, :k])
    order = np.argsort(-weight, axis=1, kind="stable")[:, :k]
    return Edges(
        source=np.take_along_axis(edges.source, order, 1),
        weight=np.take_along_axis(weight, order, 1),
    )


def no_edges(nodes: Nodes, k: int = 1) -> Edges:
    count = int(nodes.offsets[-1])
    return Edges(source=np.zeros((count, k), np.uint16), weight=np.zeros((count, k), np.float16))


def spread_edges(edges: Edges, nodes: Nodes, layers: Sequence[int]) -> Edges:
    """The edges of those layers as edges of all: the others have none."""
    spread = no_edges(nodes, edges.weight.shape[1])
    attends = np.isin(nodes.in_sample() // np.repeat(nodes.tokens, nodes.counts), layers)
    spread.source[attends], spread.weight[attends] = edges.source, edges.weight
    return spread


def edges_from_attention(batch: pa.RecordBatch, nodes: Nodes, heads: int, k: int) -> Edges:
    """The k strongest edges of each node from the full attention maps, averaged over heads."""
    column = batch.column("attentions")
    parts = []
    for row, tokens in enumerate(nodes.tokens.tolist()):
        maps = read_value(column, row).reshape(nodes.layers, heads, tokens, tokens)
        parts.append(_strongest_of_maps(maps.mean(1, dtype=np.float32), k))
    sources, weights = zip(*parts, strict=True)
    return Edges(source=np.concatenate(sources), weight=np.concatenate(weights))


def _strongest_of_maps(
    maps: np.ndarray, k: int
) -> tuple[UInt16[np.ndarray, "nodes k"], Float16[np.ndarray, "nodes k"]]:
    layers, tokens, _ = maps.shape
    few = min(k, tokens)
    order = np.argsort(-maps, axis=2, kind="stable")[:, :, :few]
    source = np.zeros((layers * tokens, k), np.uint16)
    weight = np.zeros((layers * tokens, k), np.float16)
    source[:, :few] = order.reshape(-1, few)
    weight[:, :few] = np.take_along_axis(maps, order, 2).reshape(-1, few)
    return source, weight


def _count_by_layer(
    kept: Bool[np.ndarray, "nodes k"], nodes: Nodes
) -> Int32[np.ndarray, "rows layers"]:
    """The number of kept edges per layer, from cumulative sums, so that samples without tokens
    contribute nothing."""
    total = np.concatenate([[0], np.cumsum(kept.sum(1))])
    layer = np.arange(nodes.layers + 1)
    borders = nodes.offsets[:-1, None] + layer * nodes.tokens[:, None]
    return np.diff(total[borders], axis=1).astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class HeadsGraph:
    """The graph of one sample."""

    nodes: Float16[np.ndarray, "tokens heads"]
    source: Int32[np.ndarray, " edges"]
    target: Int32[np.ndarray, " edges"]
    attr: Float16[np.ndarray, "edges heads_and_marks"]


def head_fields(shape: SampleShape) -> list[pa.Field]:
    width = _width(shape)
    attr = pa.list_(pa.list_(pa.float16(), width + _MARKS))
    return [
        shaped("nodes", pa.list_(pa.list_(pa.float16(), width)), TOKENS, width),
        pa.field("answer_start", pa.int32()),
        shaped("edge_source", pa.list_(pa.int32()), "edges"),
        shaped("edge_target", pa.list_(pa.int32()), "edges"),
        shaped("edge_attr", attr, "edges", width + _MARKS),
    ]


def head_columns(
    batch: pa.RecordBatch, shape: SampleShape, lengths: Lengths
) -> dict[str, pa.Array]:
    """The columns of heads/ from usable traces."""
    column, prompts = batch.column(MAPS), lengths.prompt.tolist()
    graphs = [
        build_heads_graph(read_value(column, row).reshape(_width(shape), tokens, tokens), prompt)
        for row, (tokens, prompt) in enumerate(zip(lengths.tokens.tolist(), prompts, strict=True))
    ]
    edges = np.array([len(graph.source) for graph in graphs], np.int64)
    return {
        "nodes": as_ragged(np.concatenate([graph.nodes for graph in graphs]), lengths.tokens),
        "answer_start": pa.array(lengths.prompt, pa.int32()),
        "edge_source": as_ragged(np.concatenate([graph.source for graph in graphs]), edges),
        "edge_target": as_ragged(np.concatenate([graph.target for graph in graphs]), edges),
        "edge_attr": as_ragged(np.concatenate([graph.attr for graph in graphs]), edges),
    }


def build_heads_graph(maps: Float16[np.ndarray, "heads tokens tokens"], prompt: int) -> HeadsGraph:
    """Edges between two prompt tokens are omitted, so only answer tokens attend."""
    heads, tokens, _ = maps.shape
    looking = maps[:, prompt:]
    strongest = (looking.view(np.uint16) & ~_SIGN).max(axis=0, initial=0)
    kept = np.tril(strongest >= _threshold_bits(), prompt - 1)
    places = np.flatnonzero(kept)
    target, source = np.divmod(places.astype(np.int32), np.int32(max(1, tokens)))
    marks = np.stack([source < prompt, source >= prompt], axis=1)
    weights = looking.reshape(heads, -1)[:, places].T
    return HeadsGraph(
        nodes=np.ascontiguousarray(maps.diagonal(axis1=1, axis2=2).T),
        source=source,
        target=target + np.int32(prompt),
        attr=np.concatenate([weights, marks.astype(np.float16)], axis=1),
    )


def head_bytes(shape: SampleShape, lengths: Lengths) -> Int[np.ndarray, " rows"]:
    """The maximum bytes of the graphs: every answer token may attend to all tokens before it."""
    width, tokens, answer = _width(shape), lengths.tokens, lengths.answer
    edges = answer * lengths.prompt + answer * (answer - 1) // 2
    return 2 * width * tokens + edges * (2 * (width + _MARKS) + 8) + 80


def _width(shape: SampleShape) -> int:
    return shape.source.attention_layers * shape.source.heads


def _threshold_bits() -> np.uint16:
    """The bits of the smallest float16 at or above the threshold."""
    nearest = np.float16(HEAD_THRESHOLD)
    if float(nearest) < HEAD_THRESHOLD:
        nearest = np.nextafter(nearest, np.float16(1))
    return nearest.view(np.uint16)
