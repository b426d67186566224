"""clew's own contestants: each has `prepare`, `open` and `make_epoch`, or `get`, or `collate`."""

import numpy as np
import pyarrow as pa
from torch.utils.data import DataLoader

from clew.datasets import (
    Loader,
    PreprocessedGNNMapDataset,
    PreprocessedLSTMDataset,
    PreprocessedLSTMMapDataset,
)
from clew.hallucination.traces.schema import id_fields, shaped
from clew.loading.buffers import BufferPool
from clew.storage.manifest import Manifest, write_manifest
from clew.storage.origin import describe_in_schema
from clew.storage.repair import add_shard
from clew.storage.writer import ShardWriter

from .graphs import BATCH as GRAPH_BATCH
from .graphs import make_samples
from .source import BATCH, SHUFFLE_BUFFER, WORKERS, Source

ROWS_A_RECORD_BATCH = 64


def write_store(folder, kind, shards, settings=None):
    """A sample store as `clew preprocess` writes it: an iterable of columns, one dict a shard."""
    folder.mkdir(parents=True)
    first = 0
    for number, columns in enumerate(shards):
        rows = len(next(iter(columns.values())))
        ids = np.arange(first, first + rows)
        table = pa.table(
            {
                "global_example_id": pa.array(ids),
                "example_id": pa.array(ids - first, pa.int32()),
                "batch_number": pa.array(np.full(rows, number), pa.int32()),
                "question_id": pa.array([str(i) for i in ids]),
                "label": pa.array((ids % 2).astype(np.float32)),
                **columns,
            }
        )
        table = table.cast(pa.schema([_with_shape(field) for field in table.schema]))
        if number == 0:
            assert table.schema.names[:4] == [field.name for field in id_fields()]
            manifest = Manifest(
                kind=kind, settings=settings or {}, rows_per_shard=rows, planned_rows=None
            )
            write_manifest(folder, manifest)
            schema = describe_in_schema(table.schema, manifest)
        writer = ShardWriter(folder, number, schema, id_column="global_example_id")
        for batch in table.to_batches(max_chunksize=ROWS_A_RECORD_BATCH):
            writer.write(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
        add_shard(folder, writer.finish())
        first += rows


def _with_shape(field):
    """Fixed sizes are numbers; what differs from sample to sample has a name."""
    kind, shape = field.type, []
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        varies = "nodes" if field.name == "nodes" else "edges"
        shape.append(varies if pa.types.is_list(kind) else kind.list_size)
        kind = kind.value_type
    return shaped(field.name, field.type, *shape) if shape else field


def sequence_columns(values):
    rows, layers, dim = values.shape
    inner = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), dim)
    return {"sequence": pa.FixedSizeListArray.from_arrays(inner, layers)}


def graph_columns(samples):
    """Flat arrays with offsets; edges count the nodes of the whole sample."""
    node_counts = [np.full(len(sample.nodes), sample.nodes.shape[1]) for sample in samples]
    edge_counts = [np.array([edge.shape[1] for edge in sample.edges]) for sample in samples]
    edges = [
        np.concatenate(
            [edge + layer * sample.nodes.shape[1] for layer, edge in enumerate(sample.edges)],
            axis=1,
        )
        for sample in samples
    ]
    nodes = [sample.nodes.reshape(-1, sample.nodes.shape[-1]) for sample in samples]
    weights = [np.concatenate(sample.weights)[:, None] for sample in samples]
    return {
        "nodes": ragged(nodes),
        "edge_source": ragged([edge[0].astype(np.int32) for edge in edges]),
        "edge_target": ragged([edge[1].astype(np.int32) for edge in edges]),
        "node_counts": fixed(node_counts),
        "edge_counts": fixed(edge_counts),
        "edge_attr": ragged(weights),
    }


def ragged(arrays):
    values = pa.array(np.concatenate(arrays).reshape(-1))
    if arrays[0].ndim == 2:
        values = pa.FixedSizeListArray.from_arrays(values, arrays[0].shape[1])
    offsets = np.cumsum([0, *(len(array) for array in arrays)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def fixed(arrays):
    values = pa.array(np.concatenate(arrays).astype(np.int32))
    return pa.FixedSizeListArray.from_arrays(values, len(arrays[0]))


def write_sequences(data, folder):
    shards = (sequence_columns(values) for values, _ in Source(data).iter_shards())
    write_store(folder / "sequences", "sequences", shards)


class Clew:
    """Two threads over mapped shards, global shuffle."""

    low_memory = False

    def prepare(self, data, folder):
        write_sequences(data, folder)

    def open(self, _data, folder, shuffle):
        dataset = PreprocessedLSTMMapDataset(folder)
        self.loader = Loader(
            dataset, BATCH, shuffle=shuffle, num_workers=WORKERS, low_memory=self.low_memory
        )

    def make_epoch(self):
        for batch in self.loader:
            yield batch["sequence"], batch["index"]


class ClewLowMemory(Clew):
    """The same with read calls in place of the mapping."""

    low_memory = True


class ClewDataLoader(Clew):
    """PyTorch's DataLoader over the iterable dataset, as users of other datasets write it."""

    workers = 0

    def open(self, _data, folder, shuffle):
        buffer = SHUFFLE_BUFFER if shuffle else 0
        dataset = PreprocessedLSTMDataset(folder, shuffle_buffer_size=buffer, batch_size=BATCH)
        self.loader = DataLoader(
            dataset, BATCH, num_workers=self.workers, persistent_workers=self.workers > 0
        )


class ClewDataLoaderWorkers(ClewDataLoader):
    workers = 4


class ClewRandom:
    """Map-style access, one sample after the other, each a copy; all shards may stay mapped."""

    copy = True
    max_cache_batches = None

    def prepare(self, data, folder):
        write_sequences(data, folder)

    def open(self, data, folder):
        shards = len(Source(data).shards)
        self.dataset = PreprocessedLSTMMapDataset(folder, max_cache_batches=shards, copy=self.copy)

    def get(self, index):
        sample = self.dataset[index]
        return sample["sequence"], sample["index"]


class ClewViews(ClewRandom):
    """The same with views of the mapped bytes in place of copies."""

    copy = False


class ClewTwoShards(ClewRandom):
    """The same with two shards mapped at a time, which is the default."""

    max_cache_batches = 2


class ClewGraphs:
    """Flat ragged arrays with offsets, from mapped shards; one thread, as PyG's collate."""

    def prepare(self, _data, folder):
        write_store(folder / "graphs", "graphs", [graph_columns(make_samples())])

    def open(self, _data, folder):
        dataset = PreprocessedGNNMapDataset(folder)
        self.samples = dataset.source.open(access="mapped", max_open=GRAPH_BATCH)
        self.buffers = BufferPool()

    def collate(self, rows):
        return self.samples.read_batch(np.array(rows), self.buffers)


class ClewGraphLoader:
    """The loader that training uses: the same batches from two threads, shuffled anew."""

    def prepare(self, data, folder):
        ClewGraphs().prepare(data, folder)

    def open(self, _data, folder):
        dataset = PreprocessedGNNMapDataset(folder)
        self.loader = Loader(
            dataset, GRAPH_BATCH, shuffle=True, num_workers=WORKERS, low_memory=False
        )

    def run_epoch(self):
        return sum(len(batch.label) for batch in self.loader)
