"""Sample stores for tests, with values that tell which sample they belong to."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from clew.shards import Manifest, ShardWriter, add_shard
from clew.shards.manifest import describe_in_schema, write_manifest
from clew.splits import Shares, Splits, assign_splits, write_splits
from clew.traces.schema import id_fields, shaped

LABELLED = [*id_fields(), pa.field("label", pa.float32()), pa.field("score", pa.float32())]


def write_samples(
    folder: Path,
    *,
    shards: int = 4,
    rows: int = 25,
    layers: int = 3,
    dim: int = 8,
    batch_rows: int = 10,
    graphs: bool = True,
    features: int = 5,
    max_tokens: int = 7,
) -> Path:
    """A folder as `clew preprocess` writes it: sequences, graphs, splits.csv."""
    write_sequences(folder / "sequences", shards, rows, layers, dim, batch_rows)
    if graphs:
        write_graphs(folder / "graphs", shards, rows, layers, features, max_tokens, batch_rows)
    ids = np.arange(shards * rows)
    question_ids = [question_id(i) for i in ids]
    splits = assign_splits(question_ids, None, label(ids), shares=Shares())
    table = Splits(
        global_example_id=ids,
        question_id=pa.array(question_ids),
        split=splits,
        label=label(ids),
        score=1 - label(ids),
    )
    write_splits(folder / "splits.csv", table)
    return folder


def question_id(number: int) -> str:
    return f"question-{number}"


def label(ids: np.ndarray) -> np.ndarray:
    return (np.asarray(ids) % 3 == 0).astype(np.float32)


def sequence_of(number: int, layers: int, dim: int) -> np.ndarray:
    """The values of one sample follow from its number."""
    random = np.random.default_rng(number)
    return random.standard_normal((layers, dim)).astype(np.float16)


def graph_of(number: int, layers: int, features: int, max_tokens: int) -> dict[str, np.ndarray]:
    """Causal graphs of all layers; edges count the nodes of the whole sample."""
    random = np.random.default_rng(number)
    tokens = int(random.integers(1, max_tokens + 1))
    full = [(s, t) for t in range(tokens) for s in range(t + 1)]
    kept = [[pair for pair in full if random.random() < 0.6] for _ in range(layers)]
    pairs = [(s + at * tokens, t + at * tokens) for at, some in enumerate(kept) for s, t in some]
    edges = np.array(pairs, np.int32).reshape(-1, 2)
    return {
        "nodes": random.standard_normal((layers * tokens, features)).astype(np.float16),
        "edge_source": edges[:, 0],
        "edge_target": edges[:, 1],
        "edge_attr": random.random((len(edges), 1)).astype(np.float16),
        "node_counts": np.full(layers, tokens, np.int32),
        "edge_counts": np.array([len(some) for some in kept], np.int32),
    }


def write_sequences(
    store: Path, shards: int, rows: int, layers: int, dim: int, batch_rows: int
) -> Path:
    kind = pa.list_(pa.list_(pa.float16(), dim), layers)
    schema = pa.schema([*LABELLED, shaped("sequence", kind, layers, dim)])

    def columns(ids: np.ndarray) -> dict[str, pa.Array]:
        values = np.concatenate([sequence_of(i, layers, dim).reshape(-1) for i in ids])
        return {
            "sequence": pa.FixedSizeListArray.from_arrays(
                pa.FixedSizeListArray.from_arrays(pa.array(values), dim), layers
            )
        }

    return _write(store, "sequences", schema, columns, shards, rows, batch_rows)


def write_graphs(
    store: Path,
    shards: int,
    rows: int,
    layers: int,
    features: int,
    max_tokens: int,
    batch_rows: int,
) -> Path:
    counts = pa.list_(pa.int32(), layers)
    schema = pa.schema(
        [
            *LABELLED,
            shaped("nodes", pa.list_(pa.list_(pa.float16(), features)), "nodes", features),
            shaped("edge_source", pa.list_(pa.int32()), "edges"),
            shaped("edge_target", pa.list_(pa.int32()), "edges"),
            shaped("node_counts", counts, layers),
            shaped("edge_counts", counts, layers),
            shaped("edge_attr", pa.list_(pa.list_(pa.float16(), 1)), "edges", 1),
        ]
    )

    def columns(ids: np.ndarray) -> dict[str, pa.Array]:
        graphs = [graph_of(i, layers, features, max_tokens) for i in ids]
        return {
            name: _nested([g[name] for g in graphs], schema.field(name).type) for name in graphs[0]
        }

    return _write(store, "graphs", schema, columns, shards, rows, batch_rows)


def _nested(arrays: list[np.ndarray], kind: pa.DataType) -> pa.Array:
    values = pa.array(np.concatenate([array.reshape(-1) for array in arrays]))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, kind.list_size)
    if pa.types.is_fixed_size_list(kind.value_type):
        values = pa.FixedSizeListArray.from_arrays(values, kind.value_type.list_size)
    offsets = np.cumsum([0, *(len(array) for array in arrays)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _write(store, kind, schema, columns, shards, rows, batch_rows) -> Path:  # type: ignore[no-untyped-def]
    store.mkdir(parents=True)
    manifest = Manifest(
        kind=kind, settings={"source": "a test"}, rows_per_shard=rows, planned_rows=shards * rows
    )
    write_manifest(store, manifest)
    schema = describe_in_schema(schema, manifest)
    for number in range(shards):
        writer = ShardWriter(store, number, schema, id_column="global_example_id")
        for start in range(0, rows, batch_rows):
            ids = number * rows + np.arange(start, min(start + batch_rows, rows))
            given = {
                "global_example_id": pa.array(ids),
                "example_id": pa.array(ids - number * rows, pa.int32()),
                "batch_number": pa.array(np.full(len(ids), number), pa.int32()),
                "question_id": pa.array([question_id(i) for i in ids]),
                "label": pa.array(label(ids)),
                "score": pa.array(1 - label(ids)),
                **columns(ids),
            }
            arrays = [given[name].cast(schema.field(name).type) for name in schema.names]
            writer.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
        add_shard(store, writer.finish())
    return store
