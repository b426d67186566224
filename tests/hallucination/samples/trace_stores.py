"""Trace stores and scores to preprocess, with targeted changes, and slow readers."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.hallucination.labels.label import label_store
from clew.hallucination.samples.source import PreprocessConfig
from clew.hallucination.traces import Trace
from clew.hallucination.traces.schema import BLOCK, is_packed, plain_field
from clew.storage.manifest import read_manifest, write_manifest
from clew.storage.origin import describe_in_schema
from clew.storage.reader import ShardReader, StoreReader, read_value
from clew.storage.repair import add_shard
from clew.storage.text_files import csv_text, read_csv
from clew.storage.writer import ShardWriter

KINDS = ("sequences", "graphs", "answers")


def score_of(number: int) -> float:
    """Three in five are correct."""
    return [1.0, 0.0, 0.75, 0.25, 0.5][number % 5]


def write_scores(path: Path, count: int, **changes: float) -> Path:
    """A scores file for the questions q0, q1, ..., with some scores changed."""
    scores = {f"q{number}": score_of(number) for number in range(count)} | changes
    lines = [f"{name},{score}" for name, score in scores.items()]
    path.write_text("\n".join(["question_id,score", *lines]) + "\n")
    return path


def write_corrected(path: Path, store: Path, labels: Mapping[int, str]) -> Path:
    """A scores file of `clew label`, corrected by hand: every answer is correct, but for these."""
    label_store(store, path)
    rows = read_csv(path)
    for number, row in enumerate(rows):
        row["correction"] = labels.get(number, "correct")
    path.write_text(csv_text([list(rows[0]), *(list(row.values()) for row in rows)]))
    return path


def tiny_preprocess(store: Path, scores: Path, out: Path, **changes: Any) -> PreprocessConfig:
    return PreprocessConfig(store=store, scores_file=scores, out=out, **changes)


def read_traces(store: Path) -> list[Trace]:
    """All traces in the order of the shards."""
    reader = StoreReader(store)
    shards = [reader.shard(index) for index in range(len(reader.shards))]
    batches = [s.record_batch(index) for s in shards for index in range(s.num_record_batches)]
    return [Trace(batch, row) for batch in batches for row in range(batch.num_rows)]


def read_samples(store: Path) -> list[dict[str, Any]]:
    """All rows of a sample store, each column as a flat array."""
    reader = StoreReader(store)
    shards = [reader.shard(index) for index in range(len(reader.shards))]
    batches = [s.record_batch(index) for s in shards for index in range(s.num_record_batches)]
    return [
        {name: read_value(batch.column(name), row) for name in batch.schema.names}
        for batch in batches
        for row in range(batch.num_rows)
    ]


def reference_graph(
    source: np.ndarray, weight: np.ndarray, *, top_k: int, threshold: float
) -> list[tuple[int, int, float]]:
    """The edges of one trace, [layers, tokens, k], one by one, numbered within the sample."""
    layers, tokens, _ = weight.shape
    found = []
    for layer in range(layers):
        for token in range(tokens):
            pairs = zip(source[layer, token], weight[layer, token], strict=True)
            strongest = sorted(pairs, key=lambda pair: -pair[1])[:top_k]
            for other, strength in strongest:
                if strength > 0 and strength >= np.float32(threshold):
                    base = layer * tokens
                    found.append((base + int(other), base + token, float(strength)))
    return found


def stored_edges(sample: Mapping[str, Any]) -> list[tuple[int, int, float]]:
    columns = (sample["edge_source"], sample["edge_target"], sample["edge_attr"])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def overwrite_value(shard: Path, column: str, row: int, place: int, value: Any) -> None:
    """Change one value of one trace in the file; of states in 8 bits, the scale of its block."""
    content = pa.memory_map(str(shard)).read_buffer()
    file = pa.ipc.open_file(content)
    batches = [file.get_batch(index) for index in range(file.num_record_batches)]
    for batch in batches:
        if row < batch.num_rows:
            break
        row -= batch.num_rows
    values = read_value(batch.column(column), row)
    at = values.ctypes.data - content.address + place * values.itemsize
    if is_packed(field := batch.schema.field(column)):
        size = plain_field(field).type.value_type.list_size
        vector, inside = divmod(place, size)
        at = values.ctypes.data - content.address + vector * field.type.value_type.list_size
        at += size + 2 * (inside // BLOCK)
        written = np.array(value, np.float32).tobytes()[2:]  # bfloat16
    else:
        written = np.array(value, values.dtype).tobytes()
    with shard.open("r+b") as raw:
        raw.seek(at)
        raw.write(written)


def rewrite_rows(store: Path, out: Path, rows_per_shard: int, **columns: list[Any]) -> Path:
    """The traces of a store in shards of another size; `columns` replace or add whole columns."""
    old = StoreReader(store)
    batches = [ShardReader(store / shard.file) for shard in old.shards]
    table = pa.Table.from_batches(
        [r.record_batch(i) for r in batches for i in range(r.num_record_batches)]
    ).combine_chunks()
    for name, values in columns.items():
        if name not in table.schema.names:
            table = table.append_column(name, [pa.array(values)])
            continue
        index, field = table.schema.get_field_index(name), table.schema.field(name)
        table = table.set_column(index, field, pa.array(values, field.type))
    # A shard holds the rows of its own range.
    ids = table.column("global_example_id").to_numpy()
    table = table.take(np.argsort(ids // rows_per_shard, kind="stable"))
    out.mkdir(parents=True)
    manifest = replace(read_manifest(store), shards=(), rows_per_shard=rows_per_shard)
    write_manifest(out, manifest)
    schema = describe_in_schema(table.schema, manifest)
    for number, start in enumerate(range(0, table.num_rows, rows_per_shard)):
        writer = ShardWriter(out, number, schema, id_column="global_example_id")
        for batch in table.slice(start, rows_per_shard).to_batches():
            writer.write(batch)
        add_shard(out, writer.finish())
    return out
