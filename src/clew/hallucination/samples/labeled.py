"""Join traces with their scores, compare them with what is already stored, and split them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32, Int

from clew.base.errors import InputError, SettingsMismatchError
from clew.hallucination.labels import (
    Refused,
    Scores,
    SpanLabels,
    refuse_other_answers,
    require_scores,
)
from clew.hallucination.samples.source import PreprocessConfig, ShardTable
from clew.hallucination.samples.splits import (
    SPLITS_FILE,
    Splits,
    assign_splits,
    assign_splits_by_file,
    read_splits,
)
from clew.hallucination.samples.store import SampleStore
from clew.storage.working_copy import fetched


@dataclass(frozen=True, kw_only=True)
class LabeledShard:
    """A trace shard's small columns with the score of every row, NaN if there is none."""

    table: ShardTable
    scores: Float32[np.ndarray, " rows"]
    labels: Float32[np.ndarray, " rows"]  # 1 hallucinated, 0 correct
    refused: Bool[np.ndarray, " rows"]
    excluded: Bool[np.ndarray, " rows"]  # by a person

    @property
    def labeled(self) -> Bool[np.ndarray, " rows"]:
        return ~np.isnan(self.scores)


def label_shards(
    tables: Sequence[ShardTable],
    scores: Scores,
    *,
    threshold: float,
    skip_unlabeled: bool = False,
    refused: Refused = "exclude",
) -> tuple[list[LabeledShard], tuple[str, ...]]:
    """Every shard with its scores, and notes for the user; raises InputError for missing ones."""
    question_ids = [name for table in tables for name in table.question_id]
    example_ids = np.concatenate([table.global_example_id for table in tables]).tolist()
    answers = [text for table in tables for text in table.answer]
    refuse_other_answers(scores, question_ids, example_ids, answers)
    matched = require_scores(
        scores, question_ids, example_ids, allow_missing=skip_unlabeled, refused=refused
    )
    # Both in float32: 0.7 is not below 0.7.
    labels = (matched.values < np.float32(threshold)).astype(np.float32)
    ends = np.cumsum([table.entry.rows for table in tables])[:-1]
    columns = (matched.values, labels, matched.refused, matched.excluded)
    shards = [
        LabeledShard(table=table, scores=s, labels=y, refused=r, excluded=x)
        for table, s, y, r, x in zip(tables, *(np.split(c, ends) for c in columns), strict=True)
    ]
    return shards, matched.notes


def describe_balance(shards: Sequence[LabeledShard], threshold: float) -> list[str]:
    """A warning if all answers are of one class: nothing can be learned from them."""
    labels = np.concatenate([shard.labels[shard.labeled] for shard in shards])
    if 0 < labels.sum() < len(labels):
        return []
    what = "hallucinated (score below" if labels.all() else "correct (score of at least"
    return [
        f"all {len(labels):,} answers are {what} {threshold:g}): a detector cannot be trained "
        "on one class alone. Check the scores, or choose another `score_threshold`."
    ]


def refuse_changed_scores(out: Path, store: SampleStore, shards: Sequence[LabeledShard]) -> None:
    """Raises SettingsMismatchError if the stored samples do not match the traces or scores."""
    by_number = {shard.table.entry.batch_number: shard for shard in shards}
    for number in store.numbers():
        if number not in by_number:
            raise SettingsMismatchError(
                f'"{store.path}" has samples from shard {number}, which the trace store no '
                "longer has: extract it again first, or write to a new folder (`out`)."
            )
        _refuse_changed_shard(out, store, by_number[number])


def refuse_changed_spans(out: Path, store: SampleStore, spans: SpanLabels | None) -> None:
    """Raises SettingsMismatchError if stored answers have other span labels now; those of further
    answers may be added."""
    for number in store.numbers():
        before = store.spans_digest(number)
        if spans is None or before is None:  # the store's columns tell whether there are any
            continue
        rows = store.stored_rows(number)
        now = spans.digest(rows.question_id, rows.global_example_id.tolist())
        if now != before:
            raise SettingsMismatchError(
                f'the span labels of answers in shard {number} changed since "{out}" was started '
                f"(their SHA-256 is {now[:12]} in {spans.path}, and was {before[:12]}): restore "
                "the file, or write to a new folder (`out`)."
            )


def _refuse_changed_shard(out: Path, store: SampleStore, shard: LabeledShard) -> None:
    table = shard.table
    rows = {number: row for row, number in enumerate(table.global_example_id.tolist())}
    stored = store.stored_rows(table.entry.batch_number)
    columns = (stored.global_example_id.tolist(), stored.question_id, stored.score.tolist())
    for number, question_id, before in zip(*columns, strict=True):
        row = rows.get(number)
        if row is None or table.question_id[row] != question_id:
            now = None if row is None else table.question_id[row]
            raise SettingsMismatchError(
                f'"{store.path}" was created from different traces: example {number} is '
                f"{question_id!r} there and {now!r} in the trace store. Write to a new folder "
                "(`out`)."
            )
        score = float(shard.scores[row])
        if score != before:
            now = "none" if np.isnan(score) else f"{score:g}"
            raise SettingsMismatchError(
                f'the score of {question_id} changed from {before:g} to {now} since "{out}" was '
                "started: write to a new folder (`out`)."
            )


def split_samples(
    config: PreprocessConfig,
    shards: Sequence[LabeledShard],
    store: SampleStore,
    previous: Mapping[str, str] | None,
) -> tuple[Splits, list[str]]:
    """The split of every stored sample, in the order of the shards."""
    parts = [(shard, store.stored_rows(shard.table.entry.batch_number)) for shard in shards]
    ids = [name for _, rows in parts for name in rows.question_id]
    if not ids:
        first = store.manifest.skipped[0]
        raise InputError(
            f'none of the traces of "{config.store}" can be used, e.g. {first["question_id"]}: '
            f"{first['reason']}. Extract them again."
        )
    numbers = np.concatenate([rows.global_example_id for _, rows in parts])
    labels = np.concatenate([rows.label for _, rows in parts])
    texts, groups = (
        [one for shard, rows in parts for one in _look_up(shard, values, rows.global_example_id)]
        for values in (lambda table: table.question, lambda table: table.group)
    )
    common: Any = {"shares": config.shares, "previous": previous, "groups": groups}
    notes = []
    if config.split_by == "file":
        batches = np.repeat(
            [shard.table.entry.batch_number for shard, _ in parts],
            [len(rows.label) for _, rows in parts],
        )
        split, moved = assign_splits_by_file(batches, ids, texts, **common)
        if moved:
            notes.append(
                "1 sample repeats a question from an earlier shard: it stays in its split"
                if moved == 1
                else f"{moved:,} samples repeat a question from an earlier shard: they "
                "stay in its split"
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


def _look_up(
    shard: LabeledShard,
    read: Callable[[ShardTable], list[str | None]],
    numbers: Int[np.ndarray, " rows"],
) -> list[str | None]:
    known = dict(zip(shard.table.global_example_id.tolist(), read(shard.table), strict=True))
    return [known[number] for number in numbers.tolist()]


def previous_splits(folder: Path) -> dict[str, str] | None:
    with fetched(folder, SPLITS_FILE) as file:
        if not file.exists():
            return None
        return read_splits(file).by_question(folder / SPLITS_FILE)
