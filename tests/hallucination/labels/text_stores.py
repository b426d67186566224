"""Stores of traces that hold texts alone: enough to label, made without a model."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew.hallucination.traces.schema import id_fields, text_fields
from clew.storage.manifest import Manifest, write_manifest
from clew.storage.origin import describe_in_schema
from clew.storage.repair import add_shard
from clew.storage.writer import ShardWriter

ROWS_PER_SHARD = 4


def trace_row(number: int, answer: str | None, accepted: Any, **fields: Any) -> dict[str, Any]:
    return {
        "global_example_id": number,
        "example_id": number % ROWS_PER_SHARD,
        "batch_number": number // ROWS_PER_SHARD,
        "question_id": f"q{number}",
        "question": f"What is {number}?",
        "accepted_answers": accepted,
        "answer": answer,
        "tokens": [1, 2],
        "prompt_length": 1,
        **fields,
    }


def write_text_store(
    store: Path,
    rows: Iterable[dict[str, Any]],
    planned_rows: int | None = None,
    extra: Sequence[pa.Field] = (),
    **settings: str,
) -> Path:
    """A store of these traces, each shard with its rows in the order given; `extra` are optional
    columns."""
    store.mkdir()
    manifest = Manifest(
        kind="traces", settings=settings, rows_per_shard=ROWS_PER_SHARD, planned_rows=planned_rows
    )
    write_manifest(store, manifest)
    schema = describe_in_schema(pa.schema([*id_fields(), *text_fields(), *extra]), manifest)
    shards: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        shards.setdefault(row["batch_number"], []).append(row)
    for number, members in shards.items():
        writer = ShardWriter(store, number, schema, id_column="global_example_id")
        writer.write(pa.RecordBatch.from_pylist(members, schema=schema))
        add_shard(store, writer.finish())
    return store
