"""Attention of all layers and heads as one graph a sample, from the full attention maps.

Nodes are the tokens, with what every head gives each of them of its own; an edge leads from the
token that is looked at to the answer's token that looks, with what every head gives it.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float16, Int, Int32

from clew.hallucination.samples.making.flat import as_ragged
from clew.hallucination.samples.making.shape import MAPS, Lengths, SampleShape
from clew.hallucination.traces.schema import TOKENS, shaped
from clew.storage import read_value

# An edge is kept when some head looks at least so much.
HEAD_THRESHOLD = 0.05
_MARKS = 2  # whether the source is of the prompt, whether it is of the answer
# Weights are never negative: their bits, as integers, are ordered as they are.
_SIGN = np.uint16(0x8000)


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
    """Edges between two tokens of the prompt are left out, so only the answer's tokens look."""
    heads, tokens, _ = maps.shape
    looking = maps[:, prompt:]
    strongest = (looking.view(np.uint16) & ~_SIGN).max(axis=0, initial=0)
    kept = np.tril(strongest >= _smallest_kept(), prompt - 1)
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
    """The most bytes that the graphs take: every token of an answer may look at all before it."""
    width, tokens, answer = _width(shape), lengths.tokens, lengths.answer
    edges = answer * lengths.prompt + answer * (answer - 1) // 2
    return 2 * width * tokens + edges * (2 * (width + _MARKS) + 8) + 80


def _width(shape: SampleShape) -> int:
    return shape.source.layers * (shape.source.heads or 0)


def _smallest_kept() -> np.uint16:
    """The bits of the smallest float16 that is not below the threshold."""
    nearest = np.float16(HEAD_THRESHOLD)
    if float(nearest) < HEAD_THRESHOLD:
        nearest = np.nextafter(nearest, np.float16(1))
    return nearest.view(np.uint16)
