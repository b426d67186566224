"""The split of every stored sample, and the splits that an earlier run gave."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from clew.errors import InputError
from clew.hallucination.samples.making.config import PreprocessConfig
from clew.hallucination.samples.making.labelled import LabelledShard
from clew.hallucination.samples.making.store import SampleStore
from clew.hallucination.samples.splits import (
    Splits,
    assign_splits,
    assign_splits_by_file,
    read_splits,
)


def split_samples(
    config: PreprocessConfig,
    shards: Sequence[LabelledShard],
    store: SampleStore,
    previous: Mapping[str, str] | None,
) -> tuple[Splits, list[str]]:
    """The split of every sample that is stored, in the order in which they lie in the shards."""
    parts = [(shard, store.stored_rows(shard.table.entry.batch_number)) for shard in shards]
    ids = [name for _, rows in parts for name in rows.question_id]
    if not ids:
        first = store.manifest.skipped[0]
        raise InputError(
            f'none of the traces of "{config.store}" can be used, e.g. {first["question_id"]}: '
            f"{first['reason']}. Capture them again."
        )
    numbers = np.concatenate([rows.global_example_id for _, rows in parts])
    labels = np.concatenate([rows.label for _, rows in parts])
    texts = [text for shard, rows in parts for text in _questions(shard, rows.global_example_id)]
    common: Any = {"shares": config.shares, "previous": previous}
    notes = []
    if config.split_by == "file":
        batches = np.repeat(
            [shard.table.entry.batch_number for shard, _ in parts],
            [len(rows.label) for _, rows in parts],
        )
        by_file = assign_splits_by_file(batches, ids, texts, **common)
        split = by_file.split
        if by_file.moved:
            notes.append(
                f"{by_file.moved:,} samples ask a question that an earlier batch has: they went "
                f"to its split"
            )
    else:
        split = assign_splits(ids, texts, labels, order=numbers, **common)
    table = Splits(
        global_example_id=numbers,
        question_id=pa.array(ids, pa.string()),
        split=split,
        label=labels,
        score=np.concatenate([rows.score for _, rows in parts]),
    )
    return table, notes


def _questions(shard: LabelledShard, numbers: Int[np.ndarray, " rows"]) -> list[str | None]:
    known = dict(zip(shard.table.global_example_id.tolist(), shard.table.question, strict=True))
    return [known[number] for number in numbers.tolist()]


def previous_splits(path: Path) -> dict[str, str] | None:
    return read_splits(path).by_question(path) if path.exists() else None
