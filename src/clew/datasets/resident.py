"""Samples that lie on the GPU: read once, then every batch is gathered there.

A GPU trains small networks faster than memory can be copied to it; a data set of some gigabytes
fits into its memory several times over.
"""

from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.datasets.buffers import BufferPool
from clew.datasets.graphs import GraphSamples
from clew.datasets.index import SampleIndex
from clew.datasets.lazy import LazyDataset
from clew.datasets.loader import Loader
from clew.datasets.reader import Rows
from clew.errors import InputError

_ROWS_A_READ = 256
_COUNTING = ("edge_source", "edge_target", "last_node")
_ARRAYS = ("sequence", "nodes", "edge_attr", *_COUNTING)
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
        self._graphs = _Graphs(arrays, max_degree) if arrays else None

    def __len__(self) -> int:
        return len(self.index.rows)

    def read_batch(self, indices: Rows, buffers: BufferPool) -> dict[str, Any]:  # noqa: ARG002
        places = torch.from_numpy(np.ascontiguousarray(indices, np.int64))
        chosen = places.to(self._device, non_blocking=True)
        batch: dict[str, Any] = {"label": self._labels[chosen], "index": places}
        if self._sequences is not None:
            batch["sequence"] = self._sequences.index_select(0, chosen)
        if self._graphs is not None:
            batch |= self._graphs.gather(indices, chosen)
        return {**batch, "question_id": self.index.question_ids[indices].tolist()}


class _Stretches:
    """Where the nodes, or the edges, of each sample begin. The counts are known on the host too: it
    must know how large a batch is, and asking the device would make it wait."""

    def __init__(self, counts: Tensor) -> None:
        self.counts, self.starts = counts, counts.cumsum(0) - counts
        self._on_host = counts.cpu().numpy()

    def lay(self, indices: Rows, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """How far each chosen sample moves when they are laid end to end, for every one of its
        values, and the places of these."""
        counts = self.counts[chosen]
        moves = counts.cumsum(0) - counts - self.starts[chosen]
        total = int(self._on_host[indices].sum())
        shift = moves.repeat_interleave(counts, output_size=total)
        return moves, torch.arange(total, device=counts.device) - shift


class _Graphs:
    """The graphs of all samples as one, whose nodes and edges are counted through."""

    def __init__(self, arrays: dict[str, Tensor], max_degree: int) -> None:
        self._last_node, self._max_degree = arrays.pop("last_node"), max_degree
        ends = self._last_node[:, -1]
        edge_ends = torch.searchsorted(arrays["edge_target"], ends.int(), right=True)
        self._nodes = _Stretches(_differences(ends + 1))
        self._edges = _Stretches(_differences(edge_ends))
        self._arrays = arrays

    def gather(self, indices: Rows, chosen: Tensor) -> dict[str, Any]:
        moves, node_places = self._nodes.lay(indices, chosen)
        _, edge_places = self._edges.lay(indices, chosen)
        edges = {
            name: self._arrays[name].index_select(0, edge_places)
            for name in ("edge_source", "edge_target", "edge_attr")
        }
        shift = moves.int().repeat_interleave(
            self._edges.counts[chosen], output_size=len(edge_places)
        )
        edges["edge_source"] += shift
        edges["edge_target"] += shift
        return {
            "nodes": self._arrays["nodes"].index_select(0, node_places),
            **edges,
            "last_node": self._last_node[chosen] + moves[:, None],
            "max_degree": self._max_degree,
        }


def _differences(ends: Tensor) -> Tensor:
    return torch.diff(ends, prepend=ends.new_zeros(1))


def _read_in(loader: Loader, device: torch.device) -> tuple[dict[str, Tensor], int]:
    """Every array of the data set in one piece on the device, and the largest degree."""
    pieces: dict[str, list[Tensor]] = defaultdict(list)
    first_node = max_degree = 0
    for batch in loader:
        moved = {
            name: batch[name].to(device, non_blocking=True) for name in _ARRAYS if name in batch
        }
        if "nodes" in moved:
            for name in _COUNTING:
                moved[name] += first_node
            first_node += len(moved["nodes"])
            max_degree = max(max_degree, batch["max_degree"])
        for name, tensor in moved.items():
            pieces[name].append(tensor)
    if first_node > _MOST_NODES:
        raise InputError(f"{first_node:,} tokens are more than a device's copy can count.")
    return {name: torch.cat(pieces.pop(name)) for name in tuple(pieces)}, max_degree
