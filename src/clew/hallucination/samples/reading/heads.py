"""Samples that are one graph over all layers and heads: tokens as nodes, attention as edges."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from clew.hallucination.samples.reading.index import find_store, read_index
from clew.hallucination.samples.reading.sequences import describe
from clew.loading.buffers import BufferPool
from clew.loading.lazy import LazyDataset
from clew.loading.reader import Access, Rows, SampleReader
from clew.loading.samples import SampleIndex

HEAD_COLUMNS = ("nodes", "edge_source", "edge_target", "edge_attr", "answer_start")
_INT64, _BOOL = np.dtype(np.int64), np.dtype(np.bool_)


class HeadsSamples:
    """Reads graphs over all heads as whole batches or one by one.

    A batch is a dict: `nodes` float16 `[nodes, heads]`, `node_graph` int64 `[nodes]` (which sample
    of the batch), `is_answer` bool `[nodes]`, `edge_source` and `edge_target` int32 `[edges]`
    (counted in the batch, sorted by target), `edge_attr` float16 `[edges, heads + 2]`,
    `node_counts` and `edge_counts` int64 `[batch]`, `label`, `index`, `question_id`. A sample is a
    batch of one.
    """

    def __init__(self, reader: SampleReader, index: SampleIndex) -> None:
        self.reader, self.index = reader, index

    def __len__(self) -> int:
        return len(self.index.rows)

    def read_batch(self, indices: Rows, buffers: BufferPool) -> dict[str, Any]:
        rows = self.index.rows[indices]
        shards = self.reader.locate(rows)
        parts = {name: self.reader.read_rows(name, rows, shards) for name in HEAD_COLUMNS}
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
            **describe(self.index, indices),
        }

    def read_samples(self, indices: Rows, buffers: BufferPool) -> list[dict[str, Any]]:
        return [self.read_sample(int(index), buffers) for index in indices]

    def read_sample(self, index: int, buffers: BufferPool | None) -> dict[str, Any]:
        return self.read_batch(np.array([index]), buffers or BufferPool())


@dataclass(frozen=True, kw_only=True)
class PreprocessedHeads:
    """The graphs over all heads of a split; None takes all splits."""

    folder: Path
    split: str | None = None

    def open(self, *, access: Access | None, max_open: int) -> HeadsSamples:
        path = find_store(self.folder, "heads")
        whole = read_index(path, "heads")
        reader = SampleReader(
            path,
            HEAD_COLUMNS,
            ids=whole.example_ids,
            questions=whole.question_ids,
            access=access,
            max_open=max_open,
        )
        return HeadsSamples(reader, whole.select(self.split))


class PreprocessedHeadsMapDataset(LazyDataset):
    """Graphs over all layers and heads, by place; for clew's own loader."""

    def __init__(
        self, preprocessed_dir: str | Path, *, split: str | None = None, max_cache_batches: int = 2
    ) -> None:
        source = PreprocessedHeads(folder=Path(preprocessed_dir), split=split)
        super().__init__(source, max_cache_batches=max_cache_batches)


def _counts(parts: Sequence[np.ndarray]) -> Int64[np.ndarray, " samples"]:
    return np.array([len(part) for part in parts], np.int64)


def _number_nodes(
    counts: Int64[np.ndarray, " samples"],
    borders: Int64[np.ndarray, " samples"],
    buffers: BufferPool,
) -> dict[str, torch.Tensor]:
    """The sample of every node, and whether it is its answer's: not before its border."""
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
    """Numbers of nodes, counted in the whole batch."""
    laid = _lay(parts, buffers)
    counts = [len(part) for part in parts]
    laid.numpy()[:] += np.repeat(shifts.astype(np.int32), counts)
    return laid
