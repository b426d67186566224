"""Samples that are one graph a layer: tokens as nodes, attention as edges, flat and ragged.

All layers of a sample lie one after the other, so a batch of graphs is built by laying the
samples end to end and adding one number to the edges of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch.utils.data._utils.collate import default_collate_fn_map

from clew.datasets.buffers import BufferPool
from clew.datasets.index import SampleIndex
from clew.datasets.reader import Rows, SampleReader
from clew.datasets.sequences import SequenceSamples, describe

if TYPE_CHECKING:
    from torch_geometric.data import Batch, Data

_INT64 = np.dtype(np.int64)
GRAPH_COLUMNS = ("nodes", "edge_source", "edge_target", "edge_attr", "node_counts", "edge_counts")


@dataclass(frozen=True, kw_only=True)
class GraphSample:
    """The graphs of one answer, layer after layer; edges count the nodes of the whole sample."""

    nodes: Float[torch.Tensor, "nodes features"]
    edge_index: Int64[torch.Tensor, "2 edges"]
    edge_attr: Float[torch.Tensor, "edges edge_features"]
    node_counts: Int[torch.Tensor, " layers"]
    edge_counts: Int[torch.Tensor, " layers"]
    label: Float[torch.Tensor, ""]
    index: int
    question_id: str
    sequence: Float[torch.Tensor, "layers dim"] | None = None

    def to_data_list(self) -> "list[Data]":
        """One PyG graph a layer."""
        from torch_geometric.data import Data

        nodes = self.nodes.split(self.node_counts.tolist())
        edges = self.edge_index.split(self.edge_counts.tolist(), dim=1)
        attrs = self.edge_attr.split(self.edge_counts.tolist())
        first = (self.node_counts.cumsum(0) - self.node_counts).tolist()
        return [
            Data(x=x, edge_index=edge - shift, edge_attr=attr)
            for x, edge, attr, shift in zip(nodes, edges, attrs, first, strict=True)
        ]


def collate(samples: Sequence[GraphSample]) -> "Batch":
    """All layers of all samples as one PyG batch, equal to what PyG's own collate gives.

    Graph `i * layers + l` is layer l of sample i. The batch also bears `label`, `index` and
    `question_id`, one a sample, and `sequence` where the samples have it.
    """
    parts = [
        GraphParts(
            nodes=sample.nodes.numpy(),
            edges=(sample.edge_index[0].numpy(), sample.edge_index[1].numpy()),
            edge_attr=sample.edge_attr.numpy(),
            node_counts=sample.node_counts.numpy(),
            edge_counts=sample.edge_counts.numpy(),
        )
        for sample in samples
    ]
    about: dict[str, Any] = {
        "label": torch.stack([sample.label for sample in samples]),
        "index": torch.tensor([sample.index for sample in samples]),
        "question_id": [sample.question_id for sample in samples],
    }
    sequences = [sample.sequence for sample in samples if sample.sequence is not None]
    if sequences:
        about["sequence"] = torch.stack(sequences)
    return _lay_end_to_end(parts, about, BufferPool())


def _collate_in_torch(samples: Sequence[GraphSample], *, collate_fn_map: Any = None) -> "Batch":  # noqa: ARG001
    return collate(samples)


# PyTorch's own loader then batches graphs as it stands, without being given a collate_fn.
default_collate_fn_map[GraphSample] = _collate_in_torch


class GraphSamples:
    """Reads graphs as whole batches or one by one; with `sequences`, their sequences beside."""

    def __init__(
        self, reader: SampleReader, index: SampleIndex, sequences: SequenceSamples | None = None
    ) -> None:
        _batch_class()  # imports PyG now, before workers are forked: it takes seconds
        self.reader, self.index, self.sequences = reader, index, sequences

    def __len__(self) -> int:
        return len(self.index.rows)

    def read_batch(self, indices: Rows, buffers: BufferPool) -> "Batch":
        rows = self.index.rows[indices]
        about = describe(self.index, indices)
        if self.sequences is not None:
            about["sequence"] = self.sequences.read_sequences(rows, buffers)
        return _lay_end_to_end(self.read_parts(rows), about, buffers)

    def read_sample(self, index: int, buffers: BufferPool | None) -> GraphSample:
        return self.read_samples(np.array([index]), buffers or BufferPool())[0]

    def read_samples(self, indices: Rows, buffers: BufferPool) -> list[GraphSample]:
        rows = self.index.rows[indices]
        about = describe(self.index, indices)
        sequences: Sequence[torch.Tensor | None] = [None] * len(rows)
        if self.sequences is not None:
            sequences = list(self.sequences.read_sequences(rows, buffers))
        return [
            GraphSample(
                nodes=torch.tensor(part.nodes),
                edge_index=torch.tensor(np.stack(part.edges), dtype=torch.int64),
                edge_attr=torch.tensor(part.edge_attr),
                node_counts=torch.tensor(part.node_counts),
                edge_counts=torch.tensor(part.edge_counts),
                label=about["label"][i],
                index=int(indices[i]),
                question_id=about["question_id"][i],
                sequence=sequences[i],
            )
            for i, part in enumerate(self.read_parts(rows))
        ]

    def read_parts(self, rows: Rows) -> "list[GraphParts]":
        """The ragged arrays of some samples, as they lie in the files."""
        shards = self.reader.locate(rows)
        columns = {name: self.reader.read_rows(name, rows, shards) for name in GRAPH_COLUMNS}
        return [
            GraphParts(
                nodes=nodes,
                edges=(source, target),
                edge_attr=edge_attr,
                node_counts=node_counts[0],
                edge_counts=edge_counts[0],
            )
            for nodes, source, target, edge_attr, node_counts, edge_counts in zip(
                *columns.values(), strict=True
            )
        ]


@dataclass(kw_only=True, slots=True)
class GraphParts:
    """The arrays of one sample; edges count the nodes of the whole sample."""

    nodes: Float[np.ndarray, "nodes features"]
    edges: tuple[Int[np.ndarray, " edges"], Int[np.ndarray, " edges"]]
    edge_attr: Float[np.ndarray, "edges edge_features"]
    node_counts: Int[np.ndarray, " layers"]
    edge_counts: Int[np.ndarray, " layers"]


def _lay_end_to_end(
    parts: Sequence[GraphParts], about: dict[str, Any], buffers: BufferPool
) -> "Batch":
    """One PyG batch of all layers of all samples, with what there is to say `about` these."""
    layers = len(parts[0].node_counts)
    ptr = _offsets([part.node_counts for part in parts])
    edge_ptr = _offsets([part.edge_counts for part in parts])
    first_node, first_edge = ptr[::layers].tolist(), edge_ptr[::layers].tolist()
    x = _empty_like(buffers, parts[0].nodes, int(ptr[-1]))
    edge_attr = _empty_like(buffers, parts[0].edge_attr, int(edge_ptr[-1]))
    edge_index = buffers.take((2, int(edge_ptr[-1])), _INT64)
    x_out, attr_out, index_out = x.numpy(), edge_attr.numpy(), edge_index.numpy()
    for i, part in enumerate(parts):
        nodes, edges = slice(*first_node[i : i + 2]), slice(*first_edge[i : i + 2])
        x_out[nodes] = part.nodes
        attr_out[edges] = part.edge_attr
        for side in (0, 1):
            np.add(part.edges[side], first_node[i], out=index_out[side, edges])
    graphs = {"x": x, "edge_index": edge_index, "edge_attr": edge_attr}
    return _as_pyg(graphs, about, ptr, edge_ptr, buffers)


def _as_pyg(
    graphs: dict[str, torch.Tensor],
    about: dict[str, Any],
    ptr: np.ndarray,
    edge_ptr: np.ndarray,
    buffers: BufferPool,
) -> "Batch":
    """What `Batch.from_data_list` makes of the same graphs, its way back to them included."""
    count = len(ptr) - 1
    graph_of = buffers.take((int(ptr[-1]),), _INT64)
    graph_of.numpy()[:] = np.repeat(np.arange(count), np.diff(ptr))
    nodes, edges = torch.from_numpy(ptr), torch.from_numpy(edge_ptr)
    none = torch.zeros(count, dtype=torch.int64)
    batch = type.__call__(_batch_class())
    batch.update({**graphs, "batch": graph_of, "ptr": nodes, **about})
    batch._num_graphs = count
    batch._slice_dict = {"x": nodes, "edge_index": edges, "edge_attr": edges}
    batch._inc_dict = {"x": none, "edge_index": nodes[:-1], "edge_attr": none}
    return batch


@cache
def _batch_class() -> "type[Batch]":
    """PyG makes the class of its batches anew for every one, which takes as long as a copy."""
    from torch_geometric.data import Batch, Data

    return type(Batch(_base_cls=Data))


def _offsets(counts: Sequence[np.ndarray]) -> Int64[np.ndarray, " graphs_and_one"]:
    ends = np.cumsum(np.concatenate(counts), dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), ends])


def _empty_like(buffers: BufferPool, array: np.ndarray, count: int) -> torch.Tensor:
    return buffers.take((count, *array.shape[1:]), array.dtype)
