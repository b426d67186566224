"""Splits by file, the way of the older system: whole shards, in order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from jaxtyping import Int, UInt8

from clew.errors import InputError
from clew.hallucination.samples.splits.assign import group_questions, known_splits
from clew.loading.splits import Shares


@dataclass(frozen=True, kw_only=True)
class FileSplits:
    """The split of every row, and how many rows went with an earlier file than their own."""

    split: UInt8[np.ndarray, " rows"]
    moved: int


def assign_splits_by_file(
    batch_numbers: Sequence[int] | np.ndarray,
    question_ids: Sequence[str],
    questions: Sequence[str | None] | None,
    *,
    shares: Shares,
    previous: Mapping[str, str] | None = None,
) -> FileSplits:
    """Shards in order: the first ones for training, then validation, then test.

    A question that comes again in a later shard goes with its first. Shards that `previous`
    has questions of stay where they are; new ones fill up what each split lacks.
    Raises InputError when there are fewer shards than splits.
    """
    rows = np.argsort(np.asarray(batch_numbers), kind="stable")
    numbers, shard = np.unique(np.asarray(batch_numbers)[rows], return_inverse=True)
    ids = [question_ids[row] for row in rows]
    groups = group_questions(ids, [questions[row] for row in rows] if questions else None)
    known = known_splits(ids, previous)
    of_shard = _deal_shards(_shards_before(shard, known, len(numbers)), shares)
    of_group = of_shard[shard][np.unique(groups, return_index=True)[1]]
    # Where a question was put, by hand too, its duplicates go; the earliest row has the last word.
    old = np.flatnonzero(known >= 0)[::-1]
    of_group[groups[old]] = known[old]
    chosen = np.where(known >= 0, known, of_group[groups])
    splits = np.zeros(len(rows), np.uint8)
    splits[rows] = chosen
    return FileSplits(split=splits, moved=int((chosen != of_shard[shard]).sum()))


def count_files(files: int, shares: Shares) -> list[int]:
    """Files a split, rounded so that the sums fit: 44 at 70/15/15 make 31, 6 and 7."""
    wanted = [share > 0 for share in shares]
    if files < sum(wanted):
        raise InputError(
            f'`split_by="file"` needs at least {sum(wanted)} batches for `split="{shares}"`, the '
            f'store has {files}: use `split_by="question"`.'
        )
    ends = [int(files * end + 0.5 + 1e-9) for end in accumulate(shares)]
    # Rounding must not leave a split empty that is to have something.
    before = 0
    for index, is_wanted in enumerate(wanted):
        last = files - sum(wanted[index + 1 :])
        before = ends[index] = min(max(ends[index], before + is_wanted), last)
    return np.diff([0, *ends]).tolist()


def _shards_before(
    shard: Int[np.ndarray, " rows"], known: Int[np.ndarray, " rows"], count: int
) -> Int[np.ndarray, " shards"]:
    """The split that most of a shard's questions had before, -1 for a new shard."""
    votes = np.zeros((count, 3), np.int64)
    np.add.at(votes, (shard[known >= 0], known[known >= 0]), 1)
    return np.where(votes.any(1), votes.argmax(1), -1)


def _deal_shards(before: Int[np.ndarray, " shards"], shares: Shares) -> Int[np.ndarray, " shards"]:
    have = np.bincount(before[before >= 0], minlength=3)
    lacking = np.maximum(np.array(count_files(len(before), shares)) - have, 0)
    dealt = before.copy()
    new = np.flatnonzero(before < 0)
    dealt[new] = np.repeat(np.arange(3), lacking)[: len(new)]
    return dealt
