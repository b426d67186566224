"""Samples in GPU memory: read once, concatenated, and every batch is gathered there. A GPU trains
small networks faster than data can be copied to it; a dataset of some gigabytes fits in its memory
several times over.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.base.errors import InputError
from clew.hallucination.samples.batches import EDGE_COLUMNS
from clew.hallucination.samples.graph_batches import GraphSamples
from clew.loading.buffers import BufferPool
from clew.loading.loader import Loader
from clew.loading.reader import Rows
from clew.loading.samples import LazyDataset, SampleIndex

_ROWS_A_READ = 256
_COUNTING = ("edge_source", "edge_target", "last_node")
_ARRAYS = ("sequence", "nodes", "is_answer", "node_counts", "edge_counts", "edge_attr", *_COUNTING)
_MOST_NODES = 2**31 - 1


class ResidentSamples:
    """All samples of a dataset in a device's memory, for `Loader(samples, ..., num_workers=0)`.

    Batches equal those that the loader reads from the files, with their tensors on the device.
    Loading uses `num_workers` threads and host memory for only a few batches. Raises InputError for
    graphs that were not opened with `flat=True`.
    """

    def __init__(self, dataset: LazyDataset, device: torch.device, *, num_workers: int = 2) -> None:
        samples = dataset.samples
        if isinstance(samples, GraphSamples) and not samples.flat:
            raise InputError("graphs on the device are plain arrays: open them with flat=True.")
        self.index: SampleIndex = samples.index
        self._device = device
        self._labels = torch.from_numpy(self.index.labels).to(device)
        loader = Loader(dataset, _ROWS_A_READ, num_workers=num_workers, pin_memory=True)
        arrays, max_degree = _read_in(loader, device)
        self._sequences = arrays.pop("sequence", None)
        self._ragged = Ragged(arrays, max_degree) if "nodes" in arrays else None

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
    """Every array of the dataset as one block on the device, and the largest degree."""
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
        raise InputError(f"{first_node:,} tokens are too many to copy to the device.")
    return {name: torch.cat(pieces.pop(name)) for name in tuple(pieces)}, max_degree


class Ragged:
    """The nodes of all samples in one block, and their edges if they have any, on the device;
    `gather` returns the arrays of the chosen samples, equal to those read from the files."""

    def __init__(self, arrays: dict[str, Tensor], max_degree: int) -> None:
        self._arrays, self._max_degree = arrays, max_degree
        self._layers = 1
        counts, edge_counts = arrays.get("node_counts"), arrays.get("edge_counts")
        if counts is None:
            ends = arrays["last_node"][:, -1]
            edge_ends = torch.searchsorted(arrays["edge_target"], ends.int(), right=True)
            counts, edge_counts = _differences(ends + 1), _differences(edge_ends)
        if edge_counts is None:  # of a grid, the tokens of one layer are counted
            self._layers = len(arrays["nodes"]) // int(counts.sum())
        self._nodes = _Stretches(counts * self._layers)
        self._edges = None if edge_counts is None else _Stretches(edge_counts)

    def gather(self, indices: Rows, chosen: Tensor) -> dict[str, Any]:
        moves, places = self._nodes.lay(indices, chosen)
        batch: dict[str, Any] = {
            **self._select(("nodes", "is_answer"), places),
            **self._select(("node_counts", "edge_counts", "last_node"), chosen),
        }
        if self._edges is None:
            most = int(self._nodes.on_host[indices].max())
            return {**batch, "max_tokens": most // self._layers}
        _, edge_places = self._edges.lay(indices, chosen)
        batch |= self._select(EDGE_COLUMNS, edge_places)
        counts = self._edges.counts[chosen]
        shift = moves.int().repeat_interleave(counts, output_size=len(edge_places))
        batch["edge_source"] += shift
        batch["edge_target"] += shift
        if "last_node" in batch:
            batch["last_node"] += moves[:, None]
            return {**batch, "max_degree": self._max_degree}
        samples = torch.arange(len(chosen), device=chosen.device)
        graphs = samples.repeat_interleave(batch["node_counts"], output_size=len(places))
        return {**batch, "node_graph": graphs}

    def _select(self, names: Sequence[str], places: Tensor) -> dict[str, Tensor]:
        found = [name for name in names if name in self._arrays]
        return {name: self._arrays[name].index_select(0, places) for name in found}


class _Stretches:
    """Where the nodes or edges of each sample start. The counts are kept on the host too: it needs
    the size of a batch, and asking the device would make it wait."""

    def __init__(self, counts: Tensor) -> None:
        self.counts, self.starts = counts, counts.cumsum(0) - counts
        self.on_host = counts.cpu().numpy()

    def lay(self, indices: Rows, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The offset of each chosen sample when concatenated, for each of its values, and the
        positions of these."""
        counts = self.counts[chosen]
        moves = counts.cumsum(0) - counts - self.starts[chosen]
        total = int(self.on_host[indices].sum())
        shift = moves.repeat_interleave(counts, output_size=total)
        return moves, torch.arange(total, device=counts.device) - shift


def _differences(ends: Tensor) -> Tensor:
    return torch.diff(ends, prepend=ends.new_zeros(1))
