"""Samples that are one array each, `[layers, dim]`: the last token's state after every layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from clew.loading.buffers import BufferPool
from clew.loading.reader import Rows, SampleReader
from clew.loading.samples import SampleIndex


class SequenceSamples:
    """Reads sequences as whole batches or one by one.

    A batch is a dict: `sequence` float16 `[batch, layers, dim]`, `label` float32 `[batch]` (1 is
    made up), `index` int64 `[batch]` (the sample's place in the data set), `question_id`.
    """

    def __init__(self, reader: SampleReader, index: SampleIndex, column: str = "sequence") -> None:
        self.reader, self.index = reader, index
        self._column = column
        kind = reader.columns[column]
        self.shape, self.dtype = kind.item_shape, kind.dtype
        self.sample_bytes = kind.item_bytes
        self._labels = torch.from_numpy(index.labels)

    def __len__(self) -> int:
        return len(self.index.rows)

    def read_batch(self, indices: Rows, buffers: BufferPool) -> dict[str, Any]:
        return {
            "sequence": self.read_sequences(self.index.rows[indices], buffers),
            **describe(self.index, indices),
        }

    def read_batches(self, parts: Sequence[Rows], buffers: BufferPool) -> list[dict[str, Any]]:
        """Several batches out of one piece of memory: for small samples, much cheaper."""
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
        """Samples as PyTorch's own loader collates them."""
        batch = self.read_batch(indices, buffers)
        return [{name: values[i] for name, values in batch.items()} for i in range(len(indices))]

    def read_sample(self, index: int, buffers: BufferPool | None) -> dict[str, Any]:
        """One sample: copied into a buffer, or a view of the file's bytes when there is none."""
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
    """What a batch tells of its samples besides their values."""
    return {
        "label": torch.from_numpy(index.labels[indices]),
        "index": torch.from_numpy(np.ascontiguousarray(indices, np.int64)),
        "question_id": index.question_ids[indices].tolist(),
    }
