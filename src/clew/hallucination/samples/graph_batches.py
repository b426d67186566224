"""Samples with one graph per layer: tokens as nodes, attention as edges, flat and ragged. The
layers of a sample are contiguous, so a batch of graphs is built by concatenating the samples and
adding one offset to the edges of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch.utils.data._utils.collate import default_collate_fn_map

from clew.base.errors import StoreError
from clew.hallucination.samples.batches import (
    EDGE_COLUMNS,
    ArraySamples,
    EdgeCheck,
    SequenceSamples,
    describe,
)
from clew.loading.buffers import BufferPool
from clew.loading.reader import Rows, SampleReader
from clew.loading.samples import SampleIndex

if TYPE_CHECKING:
    from torch_geometric.data import Batch, Data

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
GRAPH_COLUMNS = ("nodes", *EDGE_COLUMNS, "node_counts", "edge_counts")


@dataclass(frozen=True, kw_only=True)
class GraphSample:
    """The attention graphs of one answer, one per layer, concatenated. Node indices in `edge_index`
    count through the whole sample: [source, target], from the attended to the attending token.
    `node_counts` and `edge_counts` give the sizes per layer. `label` is 1 for hallucinated; `index`
    is the sample's index in the dataset; `sequence` is the last token's state per layer, if
    requested."""

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
        """One PyG graph per layer."""
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
    """All layers of all samples as one PyG batch, equal to the result of PyG's own collate.

    Graph `i * layers + l` is layer l of sample i. The batch also has `label`, `index` and
    `question_id`, one per sample, and `sequence` if the samples have it.
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
    return _as_pyg(parts, about, BufferPool())


def _collate_in_torch(samples: Sequence[GraphSample], *, collate_fn_map: Any = None) -> "Batch":  # noqa: ARG001
    return collate(samples)


# PyTorch's DataLoader then batches graphs without a collate_fn.
default_collate_fn_map[GraphSample] = _collate_in_torch


class GraphSamples(ArraySamples):
    """Reads graphs as whole batches or one by one; with `sequences`, together with their sequences.

    A batch is a PyG batch. A `flat` one is a dict of plain arrays, half the bytes, as clew's own
    networks read it: `nodes`, `edge_source`, `edge_target` (int32, counted in the batch, sorted by
    target), `edge_attr`, `last_node` `[batch, layers]`, and `max_degree`, which no node exceeds.
    """

    def __init__(
        self,
        reader: SampleReader,
        index: SampleIndex,
        sequences: SequenceSamples | None = None,
        *,
        flat: bool = False,
    ) -> None:
        if not flat:
            _batch_class()  # imports PyG before workers are forked, which takes seconds
        super().__init__(reader, index)
        self.sequences, self.flat = sequences, flat
        self._edges = EdgeCheck(reader)

    @property
    def max_degree(self) -> int | None:
        """The maximum number of edges to one node, if the store has a limit; otherwise None."""
        manifests = [part.manifest for part in self.reader.parts]
        if any(one.settings.get("command") != "preprocess" for one in manifests):
            return None
        return max(one.setting("top_k") for one in manifests)

    def read_batch(self, indices: Rows, buffers: BufferPool) -> "Batch | dict[str, Any]":
        rows = self.index.rows[indices]
        about = describe(self.index, indices)
        if self.sequences is not None:
            about["sequence"] = self.sequences.read_sequences(rows, buffers)
        parts = self.read_parts(rows)
        if self.flat:
            return self._read_flat(parts, about, buffers)
        return _as_pyg(parts, about, buffers)

    def _read_flat(
        self, parts: "list[GraphParts]", about: dict[str, Any], buffers: BufferPool
    ) -> dict[str, Any]:
        for part, name in zip(parts, about["question_id"], strict=True):
            if not part.node_counts.all():
                raise StoreError(
                    f"the sample of {name} in {self.reader.path} has a layer without a token: "
                    f'create the samples again with "clew preprocess", which excludes such traces.'
                )
        max_degree = self.max_degree
        if max_degree is None:
            parts = [part.sort_edges() for part in parts]
            max_degree = max(part.count_degree() for part in parts)
        return {**lay_flat(parts, max_degree, buffers), **about}

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
        """The ragged arrays of some samples, as they are in the files."""
        shards = self.reader.locate(rows)
        columns = {name: self.reader.read_rows(name, rows, shards) for name in GRAPH_COLUMNS}
        self._check_once(rows, columns)
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

    def _check_once(self, rows: Rows, columns: dict[str, list[np.ndarray]]) -> None:
        """Raises StoreError if the counts per layer do not match the arrays, or an edge leads to a
        node that does not exist."""
        if self._edges.is_checked(rows):
            return
        for name, counts in (("nodes", "node_counts"), ("edge_source", "edge_counts")):
            for row, part, sizes in zip(rows, columns[name], columns[counts], strict=True):
                if sizes.min() < 0 or sizes.sum(dtype=np.int64) != len(part):
                    raise self._edges.mismatch(row, f"has {counts} that do not match its {name}")
        self._edges.check(rows, columns["nodes"], [columns[name] for name in EDGE_COLUMNS])


@dataclass(kw_only=True, slots=True)
class GraphParts:
    """The arrays of one sample; edges number the nodes of the whole sample."""

    nodes: Float[np.ndarray, "nodes features"]
    edges: tuple[Int[np.ndarray, " edges"], Int[np.ndarray, " edges"]]
    edge_attr: Float[np.ndarray, "edges edge_features"]
    node_counts: Int[np.ndarray, " layers"]
    edge_counts: Int[np.ndarray, " layers"]

    def sort_edges(self) -> "GraphParts":
        """The same graphs with the edges of each node adjacent."""
        target = self.edges[1]
        if (target[1:] >= target[:-1]).all():
            return self
        order = np.argsort(target, kind="stable")
        edges = (self.edges[0][order], target[order])
        return replace(self, edges=edges, edge_attr=self.edge_attr[order])

    def count_degree(self) -> int:
        return int(np.bincount(self.edges[1], minlength=1).max())


def _lay_end_to_end(
    parts: Sequence[GraphParts], buffers: BufferPool, index_type: np.dtype
) -> tuple[dict[str, torch.Tensor], np.ndarray, np.ndarray]:
    """All layers of all samples as one graph, and where each graph's nodes and edges start."""
    layers = len(parts[0].node_counts)
    ptr = _offsets([part.node_counts for part in parts])
    edge_ptr = _offsets([part.edge_counts for part in parts])
    first_node, first_edge = ptr[::layers].tolist(), edge_ptr[::layers].tolist()
    nodes, edges, first = int(ptr[-1]), int(edge_ptr[-1]), parts[0]
    graph = {
        "x": buffers.take((nodes, *first.nodes.shape[1:]), first.nodes.dtype),
        "edge_index": buffers.take((2, edges), index_type),
        "edge_attr": buffers.take((edges, *first.edge_attr.shape[1:]), first.edge_attr.dtype),
    }
    x_out, index_out, attr_out = (tensor.numpy() for tensor in graph.values())
    for i, part in enumerate(parts):
        its_edges = slice(*first_edge[i : i + 2])
        x_out[slice(*first_node[i : i + 2])] = part.nodes
        attr_out[its_edges] = part.edge_attr
        for side in (0, 1):
            np.add(part.edges[side], first_node[i], out=index_out[side, its_edges])
    return graph, ptr, edge_ptr


def lay_flat(parts: Sequence[GraphParts], max_degree: int, buffers: BufferPool) -> dict[str, Any]:
    """The arrays of a flat batch (see `GraphSamples`); the edges of each node are adjacent."""
    graph, ptr, _ = _lay_end_to_end(parts, buffers, _INT32)
    return {
        "nodes": graph["x"],
        "edge_source": graph["edge_index"][0],
        "edge_target": graph["edge_index"][1],
        "edge_attr": graph["edge_attr"],
        "last_node": torch.from_numpy(ptr[1:].reshape(len(parts), -1) - 1),
        "max_degree": max_degree,
    }


def _as_pyg(parts: Sequence[GraphParts], about: dict[str, Any], buffers: BufferPool) -> "Batch":
    """What `Batch.from_data_list` builds from the same graphs, including the data to split it
    again, with the metadata `about` the samples."""
    graph, ptr, edge_ptr = _lay_end_to_end(parts, buffers, _INT64)
    count = len(ptr) - 1
    graph_of = buffers.take((int(ptr[-1]),), _INT64)
    graph_of.numpy()[:] = np.repeat(np.arange(count), np.diff(ptr))
    nodes, edges = torch.from_numpy(ptr), torch.from_numpy(edge_ptr)
    none = torch.zeros(count, dtype=torch.int64)
    batch = type.__call__(_batch_class())
    batch.update({**graph, "batch": graph_of, "ptr": nodes, **about})
    batch._num_graphs = count
    batch._slice_dict = {"x": nodes, "edge_index": edges, "edge_attr": edges}
    batch._inc_dict = {"x": none, "edge_index": nodes[:-1], "edge_attr": none}
    return batch


@cache
def _batch_class() -> "type[Batch]":
    """PyG creates a new class for every batch, which takes as long as a copy."""
    from torch_geometric.data import Batch, Data

    return type(Batch(_base_cls=Data))


def _offsets(counts: Sequence[np.ndarray]) -> Int64[np.ndarray, " graphs_and_one"]:
    ends = np.cumsum(np.concatenate(counts), dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), ends])
