"""Old sequences over layers, and old attention graphs, one per layer, as rows of stores."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int

from clew.base.texts import shortened
from clew.hallucination.legacy.records import (
    MAX_LAYERS,
    MalformedRecordError,
    RowIds,
    add_note,
    read_label,
    to_float32,
)
from clew.hallucination.legacy.stand_ins import Inert
from clew.hallucination.traces.compact import to_float16
from clew.hallucination.traces.schema import id_fields, shaped

# Node numbers and the lengths of lists are stored in 32 bits.
_MAX_NODES = _MAX_FEATURES = (1 << 31) - 1


def narrow(array: np.ndarray, notes: set[str]) -> np.ndarray:
    """Convert to float16; values beyond its range are clamped to its maximum, as in capture."""
    if array.dtype == np.float16:
        return array
    notes.add("arrays that were wider than float16 are stored as float16")
    return to_float16(torch.from_numpy(to_float32(array))).numpy()


def common_fields() -> list[pa.Field]:
    return [*id_fields(), pa.field("label", pa.float32())]


def common_columns(sample: Mapping[str, Any], ids: RowIds) -> dict[str, pa.Array]:
    values = {**asdict(ids), "label": read_label(sample["label"])}
    kinds = {field.name: field.type for field in common_fields()}
    return {name: pa.array([value], type=kinds[name]) for name, value in values.items()}


def fill_lists(schema: pa.Schema, name: str, values: np.ndarray) -> pa.Array:
    """One row whose (nested) list holds all of `values`."""
    kind = schema.field(name).type
    kinds = [kind]
    while pa.types.is_list(kinds[-1]) or pa.types.is_fixed_size_list(kinds[-1]):
        kinds.append(kinds[-1].value_type)
    array = pa.array(np.ascontiguousarray(values).reshape(-1), type=kinds[-1])
    for nested in reversed(kinds[:-1]):
        if pa.types.is_fixed_size_list(nested):
            array = pa.FixedSizeListArray.from_arrays(array, type=nested)
        else:
            array = pa.ListArray.from_arrays(pa.array([0, len(array)], pa.int32()), array)
    return array


def build_row(schema: pa.Schema, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


class SequenceFormat:
    """Rows with `sequence`, a float16 array `[layers, dim]`, and its label."""

    kind = "sequences"
    sizes: ClassVar[tuple[str, ...]] = ("layers", "dim")

    def __init__(self, layers: int, dim: int) -> None:
        self.layers, self.dim = layers, dim
        self.notes: set[str] = set()
        kind = pa.list_(pa.list_(pa.float16(), dim), layers)
        self.schema = pa.schema([*common_fields(), shaped("sequence", kind, layers, dim)])

    @classmethod
    def fit(cls, samples: Sequence[Any]) -> "SequenceFormat":
        """The shape that most samples have."""
        shapes = Counter(shape for s in samples if (shape := _shape_of(s["content"])))
        if not shapes:
            _read_sequence(samples[0]["content"])
        return cls(*shapes.most_common(1)[0][0])

    @property
    def settings(self) -> dict[str, Any]:
        return {"shape": {"layers": self.layers, "dim": self.dim}}

    def save(self, _store: Path) -> dict[str, str]:
        """Nothing to save: such a store consists of its shards only."""
        return {}

    def row(self, sample: Mapping[str, Any], ids: RowIds) -> pa.RecordBatch:
        """One row; raises MalformedRecordError if the sample does not fit the store."""
        sequence = _read_sequence(sample["content"])
        if sequence.shape != (self.layers, self.dim):
            raise MalformedRecordError(
                f"its sequence has shape {list(sequence.shape)}, "
                f"the store has {[self.layers, self.dim]}"
            )
        columns = common_columns(sample, ids)
        columns["sequence"] = fill_lists(self.schema, "sequence", narrow(sequence, self.notes))
        return build_row(self.schema, columns)


def _read_sequence(content: Any) -> Float[np.ndarray, "layers dim"]:
    if _shape_of(content) is None:
        what = getattr(content, "shape", type(content).__name__)
        raise MalformedRecordError(f"its sequence is not a float array [layers, dim] ({what})")
    return content


def _shape_of(content: Any) -> tuple[int, int] | None:
    fits = isinstance(content, np.ndarray) and content.ndim == 2 and content.dtype.kind == "f"
    fits = fits and content.size > 0 and max(content.shape) <= _MAX_FEATURES
    return content.shape if fits else None


@dataclass(frozen=True, kw_only=True)
class LayerGraph:
    """The graph of one layer: token states (or their reduction), and attention as edges."""

    nodes: Float[np.ndarray, "nodes features"]
    edges: Int[np.ndarray, "2 edges"]
    edge_attr: Float[np.ndarray, "edges edge_features"] | None


class GraphFormat:
    """Rows with the graphs of all layers, concatenated.

    `nodes` and the edge columns are flat, `node_counts` and `edge_counts` hold the number per
    layer. Edges number the nodes of the whole sample from 0, so that a batch is built by adding one
    offset per sample.
    """

    kind = "graphs"
    sizes: ClassVar[tuple[str, ...]] = ("layers", "features", "edge_features")

    def __init__(self, layers: int, features: int, edge_features: int) -> None:
        self.layers, self.features, self.edge_features = layers, features, edge_features
        self.notes: set[str] = set()
        node, edge = pa.list_(pa.float16(), features), pa.int32()
        fields = [
            shaped("nodes", pa.list_(node), "nodes", features),
            shaped("edge_source", pa.list_(edge), "edges"),
            shaped("edge_target", pa.list_(edge), "edges"),
            shaped("node_counts", pa.list_(pa.int32(), layers), layers),
            shaped("edge_counts", pa.list_(pa.int32(), layers), layers),
        ]
        if edge_features:
            attr = pa.list_(pa.list_(pa.float16(), edge_features))
            fields.append(shaped("edge_attr", attr, "edges", edge_features))
        self.schema = pa.schema([*common_fields(), *fields])

    @classmethod
    def fit(cls, samples: Sequence[Any]) -> "GraphFormat":
        """The sizes that most samples have."""
        sizes: Counter[tuple[int, int, int]] = Counter()
        for sample in samples:
            try:
                sizes[_sizes_of(_read_graphs(sample["content"]))] += 1
            except MalformedRecordError:
                continue
        if not sizes:
            _read_graphs(samples[0]["content"])
        return cls(*sizes.most_common(1)[0][0])

    @property
    def settings(self) -> dict[str, Any]:
        return {"shape": {name: getattr(self, name) for name in self.sizes}}

    def save(self, _store: Path) -> dict[str, str]:
        """Such a store consists of its shards only."""
        return {}

    def row(self, sample: Mapping[str, Any], ids: RowIds) -> pa.RecordBatch:
        """One row; raises MalformedRecordError if the sample does not fit the store."""
        graphs = _read_graphs(sample["content"], self.notes)
        wanted = (self.layers, self.features, self.edge_features)
        if _sizes_of(graphs) != wanted:
            raise MalformedRecordError(
                "it has {} layers, {} features per node and {} per edge".format(*_sizes_of(graphs))
                + ", the store has {}, {} and {}".format(*wanted)
            )
        columns = common_columns(sample, ids)
        for name, values in self._flatten(graphs).items():
            columns[name] = fill_lists(self.schema, name, values)
        return build_row(self.schema, columns)

    def _flatten(self, graphs: Sequence[LayerGraph]) -> dict[str, np.ndarray]:
        node_counts = np.array([len(graph.nodes) for graph in graphs], np.int32)
        firsts = np.cumsum(node_counts, dtype=np.int32) - node_counts
        shifted = [graph.edges + first for graph, first in zip(graphs, firsts, strict=True)]
        edges = np.concatenate(shifted, axis=1)
        columns = {
            "nodes": narrow(np.concatenate([graph.nodes for graph in graphs]), self.notes),
            "edge_source": edges[0],
            "edge_target": edges[1],
            "node_counts": node_counts,
            "edge_counts": np.array([graph.edges.shape[1] for graph in graphs], np.int32),
        }
        attr = [graph.edge_attr for graph in graphs if graph.edge_attr is not None]
        if attr:
            columns["edge_attr"] = narrow(np.concatenate(attr), self.notes)
        return columns


def _read_graphs(content: Any, notes: set[str] | None = None) -> list[LayerGraph]:
    if not isinstance(content, list | tuple) or not 0 < len(content) <= MAX_LAYERS:
        raise MalformedRecordError(
            f"it is a {type(content).__name__}, not a list with one graph per layer"
        )
    graphs = [_read_graph(graph, layer, notes) for layer, graph in enumerate(content)]
    _sizes_of(graphs)
    return graphs


def _read_graph(graph: Any, layer: int, notes: set[str] | None) -> LayerGraph:
    fields = read_graph_fields(graph)
    nodes: Any = fields.get("x")
    edges: Any = fields.get("edge_index")
    attr: Any = fields.get("edge_attr")
    if not _is_array(nodes, 2, "f") or not 0 < nodes.shape[1] <= _MAX_FEATURES:
        raise MalformedRecordError(f"the graph of layer {layer} has no nodes x [nodes, features]")
    if not _is_array(edges, 2, "i") or len(edges) != 2:
        raise MalformedRecordError(f"the graph of layer {layer} has no edge_index [2, edges]")
    if edges.size and not 0 <= edges.min() <= edges.max() < len(nodes):
        raise MalformedRecordError(f"an edge of layer {layer} leads to a node that does not exist")
    if attr is not None:
        attr = attr[:, None] if _is_array(attr, 1, "f") else attr
        if not _is_array(attr, 2, "f") or len(attr) != edges.shape[1]:
            raise MalformedRecordError(f"edge_attr of layer {layer} does not match its edges")
    if notes is not None:
        for name, value in fields.items():
            if value is not None and name not in ("x", "edge_index", "edge_attr"):
                add_note(notes, f"the field {shortened(name)} of the old graphs was not converted")
    return LayerGraph(nodes=nodes, edges=edges.astype(np.int32), edge_attr=attr)


def read_graph_fields(graph: Any) -> Mapping[str, Any]:
    """The tensors of a graph by name: PyG 2 keeps them in the mapping of a storage, PyG 1 in the
    object itself."""
    state = graph.state if isinstance(graph, Inert) else graph
    if isinstance(state, Mapping) and isinstance(state.get("_store"), Inert):
        inner = state["_store"].state
        state = inner.get("_mapping") if isinstance(inner, Mapping) else None
    if not isinstance(state, Mapping):
        raise MalformedRecordError(f"a layer is a {type(graph).__name__}, not a graph")
    return state


def _sizes_of(graphs: Sequence[LayerGraph]) -> tuple[int, int, int]:
    """Layers, features per node, features per edge (0: edges have none)."""
    if sum(len(graph.nodes) for graph in graphs) > _MAX_NODES:
        raise MalformedRecordError(f"its graphs have more than {_MAX_NODES:,} nodes")
    sizes = {
        (graph.nodes.shape[1], 0 if graph.edge_attr is None else graph.edge_attr.shape[1])
        for graph in graphs
    }
    if len(sizes) != 1:
        raise MalformedRecordError("its layers differ in the number of node or edge features")
    return len(graphs), *sizes.pop()


def _is_array(value: Any, ndim: int, kind: str) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == ndim and value.dtype.kind == kind
