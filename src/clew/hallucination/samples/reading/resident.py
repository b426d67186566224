"""Samples that lie on the GPU: read once, then every batch is gathered there.

A GPU trains small networks faster than memory can be copied to it; a data set of some gigabytes
fits into its memory several times over.
"""

from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.errors import InputError
from clew.hallucination.samples.reading.gathered import gather_from
from clew.hallucination.samples.reading.graphs import GraphSamples
from clew.loading.buffers import BufferPool
from clew.loading.lazy import LazyDataset
from clew.loading.loader import Loader
from clew.loading.reader import Rows
from clew.loading.samples import SampleIndex

_ROWS_A_READ = 256
_COUNTING = ("edge_source", "edge_target", "last_node")
_ARRAYS = ("sequence", "nodes", "is_answer", "node_counts", "edge_counts", "edge_attr", *_COUNTING)
_MOST_NODES = 2**31 - 1


class ResidentSamples:
    """All samples of a data set on `device`, for `Loader(samples, ..., num_workers=0)`.

    Batches equal those that the loader reads from the files, with their tensors on the device.
    Reading in takes `num_workers` threads, and no more of the host's memory than a few batches.
    """

    def __init__(self, dataset: LazyDataset, device: torch.device, *, num_workers: int = 2) -> None:
        samples = dataset.samples
        if isinstance(samples, GraphSamples) and not samples.flat:
            raise InputError("graphs lie on the device as plain arrays: open them with flat=True.")
        self.index: SampleIndex = samples.index
        self._device = device
        self._labels = torch.from_numpy(self.index.labels).to(device)
        loader = Loader(dataset, _ROWS_A_READ, num_workers=num_workers, pin_memory=True)
        arrays, max_degree = _read_in(loader, device)
        self._sequences = arrays.pop("sequence", None)
        self._ragged = gather_from(arrays, max_degree)

    def __len__(self) -> int:
        return len(self.index.rows)

    def read_batch(self, indices: Rows, buffers: BufferPool) -> dict[str, Any]:  # noqa: ARG002
        places = torch.from_numpy(np.ascontiguousarray(indices, np.int64))
        chosen = places.to(self._device, non_blocking=True)
        batch: dict[str, Any] = {"label": self._labels[chosen], "index": places}
        if self._sequences is not None:
            batch["sequence"] = self._sequences.index_select(0, chosen)
        if self._ragged is not None:
            batch |= self._ragged.gather(indices, chosen)
        return {**batch, "question_id": self.index.question_ids[indices].tolist()}


def _read_in(loader: Loader, device: torch.device) -> tuple[dict[str, Tensor], int]:
    """Every array of the data set in one piece on the device, and the largest degree."""
    pieces: dict[str, list[Tensor]] = defaultdict(list)
    first_node = max_degree = 0
    for batch in loader:
        moved = {
            name: batch[name].to(device, non_blocking=True) for name in _ARRAYS if name in batch
        }
        if "nodes" in moved:
            for name in moved.keys() & set(_COUNTING):
                moved[name] += first_node
            first_node += len(moved["nodes"])
            max_degree = max(max_degree, batch.get("max_degree", 0))
        for name, tensor in moved.items():
            pieces[name].append(tensor)
    if first_node > _MOST_NODES:
        raise InputError(f"{first_node:,} tokens are more than a device's copy can count.")
    return {name: torch.cat(pieces.pop(name)) for name in tuple(pieces)}, max_degree
