"""Batches for networks from answers that have just passed through the model, in the same steps as a
store of traces becomes samples and samples become batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from clew.hallucination.detectors.registry import SampleKind
from clew.hallucination.samples.batches import HEAD_COLUMNS, lay_grids, lay_heads
from clew.hallucination.samples.columns import build_rows
from clew.hallucination.samples.graph_batches import GRAPH_COLUMNS, GraphParts, lay_flat
from clew.hallucination.samples.source import ARRAY_COLUMNS, MAPS, Kind, SampleShape, lengths
from clew.hallucination.traces.compact import Reduced, reduced_columns, to_float16
from clew.hallucination.traces.schema import (
    TraceShape,
    build_record_batch,
    full_fields,
    id_fields,
    reduced_fields,
    text_fields,
)
from clew.loading.buffers import BufferPool
from clew.storage import read_value


@dataclass(frozen=True, kw_only=True)
class TracedAnswers:
    """Answers with their record: all tokens, and how many of them are the prompt's. `pass_maps`
    returns the full attention maps of sequences, flat, as stored."""

    record: Reduced
    tokens: Sequence[Sequence[int]]
    prompts: Sequence[int]
    pass_maps: Callable[[Sequence[Sequence[int]]], np.ndarray] | None = None


def build_batch(kind: SampleKind, answers: TracedAnswers, shape: SampleShape) -> dict[str, Any]:
    """The batch that a network on this kind of samples reads, on the CPU; sequences stay on their
    device."""
    if kind == "sequences":
        return {"sequence": to_float16(answers.record.last_hidden)}
    traces = _build_traces(kind, answers, shape)
    if kind == "heads":
        return lay_heads(_read_columns(_build("heads", traces, shape), HEAD_COLUMNS), BufferPool())
    if kind == "grids":
        return _build_grids(traces, shape)
    columns = _read_columns(_build("graphs", traces, shape), GRAPH_COLUMNS)
    parts = [
        GraphParts(
            nodes=nodes,
            edges=(source, target),
            edge_attr=attr,
            node_counts=node_counts[0],
            edge_counts=edge_counts[0],
        )
        for nodes, source, target, attr, node_counts, edge_counts in zip(
            *(columns[name] for name in GRAPH_COLUMNS), strict=True
        )
    ]
    graphs = lay_flat(parts, shape.top_k, BufferPool())
    return {**graphs, "sequence": to_float16(answers.record.last_hidden)}


def _build_grids(traces: pa.RecordBatch, shape: SampleShape) -> dict[str, Any]:
    size, tokens = shape.source.node_dim, lengths(traces.column("tokens"))
    rows = (read_value(traces.column("nodes"), row) for row in range(len(tokens)))
    nodes = [row.reshape(-1, size)[:, : shape.features] for row in rows]
    return lay_grids(nodes, tokens, BufferPool())


def _build_traces(kind: SampleKind, answers: TracedAnswers, shape: SampleShape) -> pa.RecordBatch:
    """The traces as a store holds them, with the columns that this kind of samples needs."""
    source = shape.source
    sizes = TraceShape(
        layers=source.layers,
        dim=source.dim,
        heads=source.heads or 0,
        node_dim=source.node_dim,
        edges_per_token=source.edges_per_token,
    )
    names = {"grids": {"nodes"}, "graphs": {*ARRAY_COLUMNS}}.get(kind, set())
    columns: dict[str, Any] = {
        "tokens": [list(tokens) for tokens in answers.tokens],
        "prompt_length": list(answers.prompts),
        **(reduced_columns(answers.record) if names else {}),
    }
    rows = range(len(answers.tokens))
    columns |= {field.name: list(rows) for field in id_fields() if field.name != "question_id"}
    if kind == "heads" or (kind == "graphs" and shape.from_maps):
        assert answers.pass_maps is not None  # whoever scores with such a network gives it
        columns[MAPS] = answers.pass_maps(answers.tokens)
    fields = [*id_fields(), *text_fields(), *reduced_fields(sizes), *full_fields(sizes)]
    known = {*columns} - {*(field.name for field in reduced_fields(sizes))} | names
    counts = [len(tokens) for tokens in answers.tokens]
    schema = pa.schema([f for f in fields if f.name in known or f.name == "question_id"])
    return build_record_batch(schema, columns, counts, [0] * len(counts))


def _build(kind: Kind, traces: pa.RecordBatch, shape: SampleShape) -> pa.RecordBatch:
    unknown = np.zeros(traces.num_rows, np.float32)
    return build_rows(kind, traces, unknown, unknown, shape)


def _read_columns(samples: pa.RecordBatch, names: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """The arrays of every row, shaped as a reader of the files shapes them."""
    return {name: _read_column(samples.column(name)) for name in names}


def _read_column(column: pa.Array) -> list[np.ndarray]:
    if not pa.types.is_nested(column.type):
        return list(column.to_numpy().reshape(-1, 1))
    rows = [read_value(column, row) for row in range(len(column))]
    if pa.types.is_fixed_size_list(column.type):
        return [row.reshape(1, -1) for row in rows]
    inner = column.type.value_type
    if pa.types.is_fixed_size_list(inner):
        return [row.reshape(-1, inner.list_size) for row in rows]
    return rows
