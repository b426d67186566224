"""Stores for tests: settings for tiny captures, small stores without a model, comparison,
damage."""

import os
import re
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from clew import TraceBatchLoader
from clew.base.urls import is_url
from clew.hallucination.capture import ExtractConfig
from clew.hallucination.traces.schema import BY_HEAD
from clew.storage import uploading
from clew.storage.manifest import Manifest, read_manifest, write_manifest
from clew.storage.origin import describe_in_schema
from clew.storage.reader import ShardReader, StoreReader
from clew.storage.reading import seal
from clew.storage.repair import add_shard
from clew.storage.writer import ShardWriter

ROWS_PER_SHARD = 12
TEXTS = ("global_example_id", "example_id", "batch_number", "question_id", "question", "answer")
SAME_TOKENS = (*TEXTS, "tokens", "prompt_length", "stop_reason", "accepted_answers")
# What may lie in a file's place: each makes it at the first path, a link to the second.
NOT_FILES: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda place, target: place.symlink_to(target),
    "folder": lambda place, _: place.mkdir(),
    "pipe": lambda place, _: os.mkfifo(place),
}
SCHEMA = pa.schema(
    [
        pa.field("global_example_id", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("tokens", pa.list_(pa.int32())),
        pa.field("states", pa.list_(pa.list_(pa.float16(), 4), 3)),
    ]
)


def tiny_config(model: Path, questions: Path, out: Path, **changes: object) -> ExtractConfig:
    """Settings that suit the tiny model."""
    settings: dict = {
        "shard_size": 20,
        "generation_batch": 8,
        "max_new_tokens": 6,
        "node_dim": 4,
        "edges_per_token": 4,
        "device": "cpu",
    }
    names = {"model": str(model), "questions": str(questions), "out": out}
    return ExtractConfig(**names, **(settings | changes))


@contextmanager
def one_thread() -> Iterator[None]:
    """For tiny models: several threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def after_one_batch() -> Callable[[], bool]:
    """A `should_stop` for a model that is already loaded: asked before the first batch, it says no;
    after that, yes."""
    answers = iter((False,))
    return lambda: next(answers, True)


def make_rows(ids: Iterable[int]) -> pa.RecordBatch:
    """Rows whose values follow from their ids."""
    ids = list(ids)
    states = [(np.arange(12) + i).astype(np.float16).reshape(3, 4).tolist() for i in ids]
    return pa.RecordBatch.from_pydict(
        {
            "global_example_id": ids,
            "text": [f"question {i}, ¿sí?" for i in ids],
            "tokens": [list(range(i % 5)) for i in ids],
            "states": states,
        },
        schema=SCHEMA,
    )


def new_manifest(planned_rows: int | None = None) -> Manifest:
    return Manifest(
        kind="samples",
        settings={"source": {"store": "a test"}},
        rows_per_shard=ROWS_PER_SHARD,
        planned_rows=planned_rows,
    )


def write_store(
    store: Path, shards: int = 3, groups: int = 3, manifest: Manifest | None = None
) -> Path:
    """A finished store in a folder or at a URL: `shards` shards of 12 rows in `groups` record
    batches each."""
    if not is_url(store):
        store.mkdir(parents=True)
    write_manifest(store, manifest or new_manifest(shards * ROWS_PER_SHARD))
    for number in range(shards):
        writer = open_writer(store, number)
        write_groups(writer, groups)
        add_shard(store, writer.finish())
    return store


def open_writer(store: Path, number: int) -> ShardWriter:
    """The writer that the command which made the store would open."""
    schema = describe_in_schema(SCHEMA, read_manifest(store))
    return uploading.open_writer(store, number, schema, id_column="global_example_id")


def write_groups(writer: ShardWriter, groups: int = 3) -> list[int]:
    """Write the shard's missing rows in equal record batches; returns where each one ends."""
    first, size = writer.batch_number * ROWS_PER_SHARD, ROWS_PER_SHARD // groups
    ends = []
    for start in range(first, first + ROWS_PER_SHARD, size):
        missing = [i for i in range(start, start + size) if i not in writer.recovered_ids]
        if missing:
            writer.write(make_rows(missing))
            ends.append(writer.bytes_written)
    return ends


def read_rows(path: Path) -> dict[int, dict[str, Any]]:
    """All rows of a shard by id; a duplicate row is an error."""
    reader = ShardReader(path)
    batches = [reader.record_batch(i) for i in range(reader.num_record_batches)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    by_id = {row["global_example_id"]: row for row in rows}
    assert len(by_id) == len(rows), f"{path.name} holds a row twice"
    return by_id


def read_columns(store: Path) -> dict[str, list[bytes]]:
    """Every column of a store, in the order of the ids, each value as its bytes."""
    reader = StoreReader(store)
    shards = [reader.shard(index) for index in range(len(reader.shards))]
    ids = [i for shard in shards for i in shard.read_column("global_example_id").to_pylist()]
    assert sorted(ids) == list(range(len(ids))), "ids must run from 0 without a gap or a duplicate"
    order = np.argsort(ids)
    columns = {}
    for name in shards[0].schema.names:
        values = [v for shard in shards for v in shard.read_column(name)]
        columns[name] = [_as_bytes(values[i]) for i in order]
    return columns


def assert_same_store(found: Path, expected: Path) -> None:
    """Every value of every column is the same, bit for bit."""
    mine, other = read_columns(found), read_columns(expected)
    assert mine.keys() == other.keys()
    different = {
        name: [i for i, (a, b) in enumerate(zip(mine[name], other[name], strict=True)) if a != b]
        for name in mine
    }
    assert not any(different.values()), {name: rows for name, rows in different.items() if rows}
    ours, theirs = StoreReader(found), StoreReader(expected)
    assert [s.rows for s in ours.shards] == [s.rows for s in theirs.shards]
    assert ours.manifest.planned_rows == theirs.manifest.planned_rows


def flip_byte(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)


def offset_of(path: Path, needle: bytes) -> int:
    """The offset of some bytes in a file, to damage them there."""
    at = path.read_bytes().find(needle)
    assert at >= 0, f"{needle!r} is not in {path.name}"
    return at


def forget_shards(store: Path, numbers: Sequence[int]) -> None:
    """Removes shards from the manifest, as if the process had died before adding them."""
    manifest = StoreReader(store).manifest
    kept = tuple(s for s in manifest.shards if s.batch_number not in numbers)
    write_manifest(store, replace(manifest, shards=kept))


def _as_bytes(value: pa.Scalar) -> bytes:
    if value.as_py() is None:
        return b"null"
    array = pa.array([value.as_py()], value.type)
    while pa.types.is_nested(array.type):
        array = array.flatten()
    if pa.types.is_string(array.type):
        return "\0".join(array.to_pylist()).encode()
    return array.to_numpy(zero_copy_only=False).tobytes()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A limit on the size of files stands in for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def assert_nearly_same_store(found: Path, expected: Path) -> None:
    """Different batches round differently; everything else is the same."""
    mine, other = read_columns(found), read_columns(expected)
    assert {name: mine[name] for name in SAME_TOKENS} == {n: other[n] for n in SAME_TOKENS}
    for ours, theirs in zip(
        TraceBatchLoader(found).iter_traces(), TraceBatchLoader(expected).iter_traces(), strict=True
    ):
        states = ("last_hidden", "answer_hidden", "nodes")
        for name in (*states, "edge_weight", *BY_HEAD, "lookback"):
            assert np.allclose(ours[name], theirs[name], rtol=5e-3, atol=5e-3), name


def edit_json_file(path: Path, change: Callable[[str], str]) -> None:
    """Changes the text of a JSON file of clew's, as if clew had written it so: its checksum is
    that of the new text."""
    path.write_bytes(seal(change(without_checksum(path))))


def without_checksum(path: Path) -> str:
    """The text of a JSON file of clew's, as an earlier version would have written it."""
    return re.sub(r',?\n "clew_checksum": "\w+"\n}\n\Z', "\n}\n", path.read_text(encoding="utf-8"))
