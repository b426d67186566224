"""Attention as graphs: from the stored edges of every token to flat arrays of whole samples.

Nodes are the tokens of all layers, one layer after the other; an edge leads from the token that
is looked at (source) to the token that looks (target), both counted in the whole sample.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float16, Int, Int32, UInt16

from clew.storage import read_value


@dataclass(frozen=True, kw_only=True)
class Edges:
    """The stored edges of some traces: `k` a token and layer, trace after trace, flat."""

    source: Int[np.ndarray, "nodes k"]
    weight: Float16[np.ndarray, "nodes k"]


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The place of every node (token of a layer) of some traces, trace after trace."""

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
    """Keep the edges that are there (weight above 0) and at least as strong as asked for."""
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
    """The nodes with an edge from a later token, which no causal attention has."""
    late = np.asarray(edges.source > nodes.in_layer()[:, None])
    return np.any(late & np.asarray(edges.weight > 0), axis=1)


def strongest_edges(edges: Edges, k: int) -> Edges:
    """The k strongest of each node. Capture stores them so; only other orders are sorted."""
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
    """By running sums, so that samples without a token count nothing rather than go wrong."""
    total = np.concatenate([[0], np.cumsum(kept.sum(1))])
    layer = np.arange(nodes.layers + 1)
    borders = nodes.offsets[:-1, None] + layer * nodes.tokens[:, None]
    return np.diff(total[borders], axis=1).astype(np.int32)
