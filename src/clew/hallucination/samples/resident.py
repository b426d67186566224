"""Samples in GPU memory: read once, concatenated, and every batch is gathered there. A GPU trains
small networks faster than data can be copied to it; a dataset of some gigabytes fits in its memory
several times over.
"""

from collections import defaultdict
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from clew.base.errors import InputError
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


class Gathered(Protocol):
    """Holds all samples of one kind on the device; `gather` returns the arrays of the chosen ones,
    equal to those read from the files."""

    def gather(self, indices: Rows, chosen: Tensor) -> dict[str, Any]: ...


class Stretches:
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


class _Edges:
    """The edges of all samples, with nodes numbered globally."""

    def __init__(self, arrays: dict[str, Tensor], counts: Tensor) -> None:
        names = ("edge_source", "edge_target", "edge_attr")
        self._arrays = {name: arrays[name] for name in names}
        self._stretches = Stretches(counts)

    def gather(self, indices: Rows, chosen: Tensor, moves: Tensor) -> dict[str, Tensor]:
        """The edges of the chosen samples, with their nodes shifted by the offsets."""
        _, places = self._stretches.lay(indices, chosen)
        edges = {name: array.index_select(0, places) for name, array in self._arrays.items()}
        counts = self._stretches.counts[chosen]
        shift = moves.int().repeat_interleave(counts, output_size=len(places))
        edges["edge_source"] += shift
        edges["edge_target"] += shift
        return edges


class GatheredGraphs:
    """The graphs of all samples as one, with nodes and edges numbered globally."""

    def __init__(self, arrays: dict[str, Tensor], max_degree: int) -> None:
        self._last_node, self._max_degree = arrays["last_node"], max_degree
        ends = self._last_node[:, -1]
        edge_ends = torch.searchsorted(arrays["edge_target"], ends.int(), right=True)
        self._stretches = Stretches(_differences(ends + 1))
        self._edges = _Edges(arrays, _differences(edge_ends))
        self._nodes = arrays["nodes"]

    def gather(self, indices: Rows, chosen: Tensor) -> dict[str, Any]:
        moves, places = self._stretches.lay(indices, chosen)
        return {
            "nodes": self._nodes.index_select(0, places),
            **self._edges.gather(indices, chosen, moves),
            "last_node": self._last_node[chosen] + moves[:, None],
            "max_degree": self._max_degree,
        }


class GatheredHeads:
    """The graphs over all heads of all samples as one."""

    def __init__(self, arrays: dict[str, Tensor]) -> None:
        self._counts = {name: arrays[name] for name in ("node_counts", "edge_counts")}
        self._stretches = Stretches(arrays["node_counts"])
        self._edges = _Edges(arrays, arrays["edge_counts"])
        self._nodes = {name: arrays[name] for name in ("nodes", "is_answer")}

    def gather(self, indices: Rows, chosen: Tensor) -> dict[str, Any]:
        moves, places = self._stretches.lay(indices, chosen)
        counts = {name: array[chosen] for name, array in self._counts.items()}
        samples = torch.arange(len(chosen), device=chosen.device)
        return {
            **{name: array.index_select(0, places) for name, array in self._nodes.items()},
            "node_graph": samples.repeat_interleave(counts["node_counts"], output_size=len(places)),
            **self._edges.gather(indices, chosen, moves),
            **counts,
        }


class GatheredGrids:
    """The grids of all samples, concatenated."""

    def __init__(self, arrays: dict[str, Tensor]) -> None:
        self._nodes, self._tokens = arrays["nodes"], arrays["node_counts"]
        layers = len(self._nodes) // int(self._tokens.sum())
        self._stretches = Stretches(self._tokens * layers)
        self._layers = layers

    def gather(self, indices: Rows, chosen: Tensor) -> dict[str, Any]:
        _, places = self._stretches.lay(indices, chosen)
        return {
            "nodes": self._nodes.index_select(0, places),
            "node_counts": self._tokens[chosen],
            "max_tokens": int(self._stretches.on_host[indices].max()) // self._layers,
        }


def gather_from(arrays: dict[str, Tensor], max_degree: int) -> Gathered | None:
    """The gatherer for the arrays of a dataset; None if nothing in it is ragged."""
    if "last_node" in arrays:
        return GatheredGraphs(arrays, max_degree)
    if "edge_counts" in arrays:
        return GatheredHeads(arrays)
    return GatheredGrids(arrays) if "nodes" in arrays else None


def _differences(ends: Tensor) -> Tensor:
    return torch.diff(ends, prepend=ends.new_zeros(1))
