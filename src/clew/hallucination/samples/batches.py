"""Samples as plain arrays in batches: sequences `[layers, dim]` of one length; and, concatenated,
one graph over all layers and heads (tokens as nodes, attention as edges) or a grid of reduced
states, layers by tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from clew.base.errors import StoreError
from clew.loading.buffers import BufferPool
from clew.loading.reader import Rows, SampleReader
from clew.loading.samples import SampleIndex

EDGE_COLUMNS = ("edge_source", "edge_target", "edge_attr")
HEAD_COLUMNS = ("nodes", *EDGE_COLUMNS, "answer_start")
_INT64, _BOOL = np.dtype(np.int64), np.dtype(np.bool_)
GRID_COLUMNS = ("nodes", "node_counts")


class ArraySamples:
    """Samples that are read as whole batches; a sample is a batch of one."""

    def __init__(self, reader: SampleReader, index: SampleIndex) -> None:
        self.reader, self.index = reader, index

    def __len__(self) -> int:
        return len(self.index.rows)

    def read_batch(self, indices: Rows, buffers: BufferPool) -> Any:
        raise NotImplementedError

    def read_samples(self, indices: Rows, buffers: BufferPool) -> list[Any]:
        return [self.read_sample(int(index), buffers) for index in indices]

    def read_sample(self, index: int, buffers: BufferPool | None) -> Any:
        return self.read_batch(np.array([index]), buffers or BufferPool())


class SequenceSamples(ArraySamples):
    """Reads sequences as whole batches or one by one.

    A batch is a dict: `sequence` float16 `[batch, layers, dim]`, `label` float32 `[batch]` (1 is
    hallucinated), `index` int64 `[batch]` (the sample's index in the dataset), `question_id`.
    """

    def __init__(self, reader: SampleReader, index: SampleIndex, column: str = "sequence") -> None:
        super().__init__(reader, index)
        self._column = column
        kind = reader.columns[column]
        self.shape, self.dtype = kind.item_shape, kind.dtype
        self.sample_bytes = kind.item_bytes
        self._labels = torch.from_numpy(index.labels)

    def read_batch(self, indices: Rows, buffers: BufferPool) -> dict[str, Any]:
        return {
            "sequence": self.read_sequences(self.index.rows[indices], buffers),
            **describe(self.index, indices),
        }

    def read_batches(self, parts: Sequence[Rows], buffers: BufferPool) -> list[dict[str, Any]]:
        """Several batches from one block of memory, which is much cheaper for small samples."""
        indices = np.concatenate(parts)
        whole = self.read_batch(indices, buffers)
        ends = np.cumsum([len(part) for part in parts]).tolist()
        return [
            {name: values[end - len(part) : end] for name, values in whole.items()}
            for part, end in zip(parts, ends, strict=True)
        ]

    def read_sequences(self, rows: Rows, buffers: BufferPool) -> torch.Tensor:
        sequences = buffers.take((len(rows), *self.shape), self.dtype)
        content = sequences.numpy().reshape(len(rows), -1).view(np.uint8)
        self.reader.copy_rows(self._column, rows, content)
        return sequences

    def read_samples(self, indices: Rows, buffers: BufferPool) -> list[dict[str, Any]]:
        """Samples as PyTorch's DataLoader collates them."""
        batch = self.read_batch(indices, buffers)
        return [{name: values[i] for name, values in batch.items()} for i in range(len(indices))]

    def read_sample(self, index: int, buffers: BufferPool | None) -> dict[str, Any]:
        """One sample: copied into a buffer, or a view of the file's bytes if there is none."""
        sequence = torch.from_numpy(
            self.reader.read_one(self._column, int(self.index.rows[index]))[0]
        )
        if buffers is not None:
            sequence = buffers.take(self.shape, self.dtype).copy_(sequence)
        return {
            "sequence": sequence,
            "label": self._labels[index].clone(),
            "index": index,
            "question_id": self.index.question_ids[index],
        }


def describe(index: SampleIndex, indices: Rows) -> dict[str, Any]:
    """The metadata of a batch's samples."""
    return {
        "label": torch.from_numpy(index.labels[indices]),
        "index": torch.from_numpy(np.ascontiguousarray(indices, np.int64)),
        "question_id": index.question_ids[indices].tolist(),
    }


class EdgeCheck:
    """Checks that edges lead to nodes that exist. Every row is checked once, when it is first read:
    training reads it again in every epoch."""

    def __init__(self, reader: SampleReader) -> None:
        self._path, self._known = reader.path, np.zeros(reader.rows, bool)

    def check(
        self, rows: Rows, nodes: Sequence[np.ndarray], edges: Sequence[Sequence[np.ndarray]]
    ) -> None:
        """`edges` are the sources, the targets and the values of each row's edges; raises
        StoreError."""
        for place in np.flatnonzero(~self._known[rows]).tolist():
            ends, size = [part[place] for part in edges], len(nodes[place])
            if len({*map(len, ends)}) > 1:
                raise self.mismatch(rows[place], "has columns of edges that differ in length")
            if any(len(end) and not 0 <= end.min() <= end.max() < size for end in ends[:2]):
                raise self.mismatch(rows[place], "has an edge to a node that does not exist")
        self._known[rows] = True

    def is_checked(self, rows: Rows) -> bool:
        return bool(self._known[rows].all())

    def mismatch(self, row: int, reason: str) -> StoreError:
        return StoreError(
            f'sample {row} of {self._path} {reason}: create the samples again with "clew '
            'preprocess".'
        )


class HeadsSamples(ArraySamples):
    """Reads graphs over all heads as whole batches or one by one.

    A batch is a dict: `nodes` float16 `[nodes, heads]`, `node_graph` int64 `[nodes]` (which sample
    of the batch), `is_answer` bool `[nodes]`, `edge_source` and `edge_target` int32 `[edges]`
    (counted in the batch, sorted by target), `edge_attr` float16 `[edges, heads + 2]`,
    `node_counts` and `edge_counts` int64 `[batch]`, `label`, `index`, `question_id`. A sample is a
    batch of one.
    """

    def __init__(self, reader: SampleReader, index: SampleIndex) -> None:
        super().__init__(reader, index)
        self._edges = EdgeCheck(reader)

    def read_batch(self, indices: Rows, buffers: BufferPool) -> dict[str, Any]:
        rows = self.index.rows[indices]
        shards = self.reader.locate(rows)
        parts = {name: self.reader.read_rows(name, rows, shards) for name in HEAD_COLUMNS}
        self._edges.check(rows, parts["nodes"], [parts[name] for name in EDGE_COLUMNS])
        return {**lay_heads(parts, buffers), **describe(self.index, indices)}


def lay_heads(parts: Mapping[str, Sequence[np.ndarray]], buffers: BufferPool) -> dict[str, Any]:
    """The arrays of a batch (see `HeadsSamples`) from those of each sample, by column."""
    nodes, edges = _counts(parts["nodes"]), _counts(parts["edge_source"])
    first = np.cumsum(nodes) - nodes
    borders = first + np.array([int(start[0]) for start in parts["answer_start"]])
    return {
        "nodes": _lay(parts["nodes"], buffers),
        **_number_nodes(nodes, borders, buffers),
        "edge_source": _lay_shifted(parts["edge_source"], first, buffers),
        "edge_target": _lay_shifted(parts["edge_target"], first, buffers),
        "edge_attr": _lay(parts["edge_attr"], buffers),
        "node_counts": torch.from_numpy(nodes),
        "edge_counts": torch.from_numpy(edges),
    }


def _counts(parts: Sequence[np.ndarray]) -> Int64[np.ndarray, " samples"]:
    return np.array([len(part) for part in parts], np.int64)


def _number_nodes(
    counts: Int64[np.ndarray, " samples"],
    borders: Int64[np.ndarray, " samples"],
    buffers: BufferPool,
) -> dict[str, torch.Tensor]:
    """The sample of every node, and whether it is an answer token."""
    total = int(counts.sum())
    graph, is_answer = buffers.take((total,), _INT64), buffers.take((total,), _BOOL)
    graph.numpy()[:] = np.repeat(np.arange(len(counts)), counts)
    np.greater_equal(np.arange(total), np.repeat(borders, counts), out=is_answer.numpy())
    return {"node_graph": graph, "is_answer": is_answer}


def _lay(parts: Sequence[np.ndarray], buffers: BufferPool) -> torch.Tensor:
    shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
    laid = buffers.take(shape, parts[0].dtype)
    np.concatenate(parts, out=laid.numpy())
    return laid


def _lay_shifted(
    parts: Sequence[np.ndarray], shifts: Int64[np.ndarray, " samples"], buffers: BufferPool
) -> torch.Tensor:
    """Node numbers within the whole batch."""
    laid = _lay(parts, buffers)
    counts = [len(part) for part in parts]
    laid.numpy()[:] += np.repeat(shifts.astype(np.int32), counts)
    return laid


class GridSamples(ArraySamples):
    """Reads grids as whole batches or one by one.

    A batch is a dict: `nodes` float16 `[states, features]`, sample by sample, layer by layer, token
    by token; `node_counts` int64 `[batch]`, the tokens of each sample; `max_tokens`, which no
    sample exceeds; `label`, `index`, `question_id`. A sample is a batch of one.
    """

    def __init__(self, reader: SampleReader, index: SampleIndex) -> None:
        super().__init__(reader, index)
        self.layers: int = reader.columns["node_counts"].item_shape[0]

    def read_batch(self, indices: Rows, buffers: BufferPool) -> dict[str, Any]:
        rows = self.index.rows[indices]
        shards = self.reader.locate(rows)
        nodes, counts = (self.reader.read_rows(name, rows, shards) for name in GRID_COLUMNS)
        tokens = self._count_tokens(np.concatenate(counts), _counts(nodes), indices)
        return {**lay_grids(nodes, tokens, buffers), **describe(self.index, indices)}

    def _count_tokens(self, counts: np.ndarray, nodes: np.ndarray, indices: Rows) -> np.ndarray:
        """Raises StoreError for a sample whose layers differ, which is possible for graphs but not
        for grids."""
        bad = (counts != counts[:, :1]).any(1) | (counts[:, 0] < 1) | (counts.sum(1) != nodes)
        if bad.any():
            first = int(np.argmax(bad))
            raise StoreError(
                f"the sample of {self.index.question_ids[indices[first]]} in {self.reader.path} is "
                f"not a grid: its layers have {counts[first].tolist()} tokens, and there are "
                f'{nodes[first]:,} states. Create the samples with "clew preprocess".'
            )
        return counts[:, 0].astype(np.int64)


def lay_grids(
    nodes: Sequence[np.ndarray], tokens: Int64[np.ndarray, " samples"], buffers: BufferPool
) -> dict[str, Any]:
    """The arrays of a batch (see `GridSamples`) from the states and the tokens of each sample."""
    return {
        "nodes": _lay(nodes, buffers),
        "node_counts": torch.from_numpy(tokens),
        "max_tokens": int(tokens.max()),
    }
