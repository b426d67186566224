"""Samples that are a grid of reduced states, layers by tokens: the nodes of the graphs alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clew.errors import StoreError
from clew.hallucination.samples.reading.index import find_store, read_index
from clew.hallucination.samples.reading.sequences import describe
from clew.loading.buffers import BufferPool
from clew.loading.lazy import LazyDataset
from clew.loading.reader import Access, Rows, SampleReader
from clew.loading.samples import SampleIndex

_COLUMNS = ("nodes", "node_counts")


class GridSamples:
    """Reads grids as whole batches or one by one.

    A batch is a dict: `nodes` float16 `[states, features]`, sample by sample, layer by layer, token
    by token; `node_counts` int64 `[batch]`, the tokens of each sample; `max_tokens`, which no
    sample exceeds; `label`, `index`, `question_id`. A sample is a batch of one.
    """

    def __init__(self, reader: SampleReader, index: SampleIndex) -> None:
        self.reader, self.index = reader, index
        self.layers: int = reader.columns["node_counts"].item_shape[0]

    def __len__(self) -> int:
        return len(self.index.rows)

    def read_batch(self, indices: Rows, buffers: BufferPool) -> dict[str, Any]:
        rows = self.index.rows[indices]
        shards = self.reader.locate(rows)
        nodes, counts = (self.reader.read_rows(name, rows, shards) for name in _COLUMNS)
        tokens = self._count_tokens(np.concatenate(counts), indices)
        laid = buffers.take((sum(map(len, nodes)), *nodes[0].shape[1:]), nodes[0].dtype)
        np.concatenate(nodes, out=laid.numpy())
        return {
            "nodes": laid,
            "node_counts": torch.from_numpy(tokens),
            "max_tokens": int(tokens.max()),
            **describe(self.index, indices),
        }

    def read_samples(self, indices: Rows, buffers: BufferPool) -> list[dict[str, Any]]:
        return [self.read_sample(int(index), buffers) for index in indices]

    def read_sample(self, index: int, buffers: BufferPool | None) -> dict[str, Any]:
        return self.read_batch(np.array([index]), buffers or BufferPool())

    def _count_tokens(self, counts: np.ndarray, indices: Rows) -> np.ndarray:
        """Raises StoreError for a sample whose layers differ, which graphs may and grids cannot."""
        bad = (counts != counts[:, :1]).any(1) | (counts[:, 0] < 1)
        if bad.any():
            first = int(np.argmax(bad))
            raise StoreError(
                f"the sample of {self.index.question_ids[indices[first]]} in {self.reader.path} is "
                f"no grid: its layers have {counts[first].tolist()} tokens. Make the samples with "
                f'"clew preprocess".'
            )
        return counts[:, 0].astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class PreprocessedGrids:
    """The grids of a split; None takes all splits."""

    folder: Path
    split: str | None = None

    def open(self, *, access: Access | None, max_open: int) -> GridSamples:
        path = find_store(self.folder, "graphs")
        whole = read_index(path, "graphs")
        reader = SampleReader(
            path,
            _COLUMNS,
            ids=whole.example_ids,
            questions=whole.question_ids,
            access=access,
            max_open=max_open,
        )
        return GridSamples(reader, whole.select(self.split))


class PreprocessedGridsMapDataset(LazyDataset):
    """Grids of reduced states, layers by tokens, by place; for clew's own loader."""

    def __init__(
        self, preprocessed_dir: str | Path, *, split: str | None = None, max_cache_batches: int = 2
    ) -> None:
        source = PreprocessedGrids(folder=Path(preprocessed_dir), split=split)
        super().__init__(source, max_cache_batches=max_cache_batches)
