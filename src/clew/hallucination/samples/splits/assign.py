"""Splits by question, or by file as in legacy data. By question: no question in two splits,
both classes in proportion, and existing questions keep their split when new ones are added. No
randomness other than a hash."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from jaxtyping import Int, UInt8

from clew.base.errors import InputError
from clew.hallucination.labels import normalize_answer
from clew.loading.splits import SPLIT_NAMES, Shares

# How far a class may be above or below its share of a split, in samples: 1 if there are few
# samples, 2 if there are many, so that nine in ten stay where their hash puts them.
_TIGHT, _LOOSE, _MANY = 1.0, 2.0, 500


def assign_splits(
    question_ids: Sequence[str],
    questions: Sequence[str | None] | None,
    labels: Sequence[float] | np.ndarray,
    *,
    shares: Shares,
    previous: Mapping[str, str] | None = None,
    order: Sequence[int] | np.ndarray | None = None,
) -> UInt8[np.ndarray, " rows"]:
    """The split of every row: 0 training, 1 validation, 2 test.

    Rows with the same id or the same normalized question text form a group that stays together.
    Groups are assigned in `order` (numbers to sort the rows by, such as their `global_example_id`;
    the given order if None), so that appended rows change nothing before them. `previous` maps
    question ids to split names that are kept.
    """
    place = np.argsort(np.asarray(order), kind="stable") if order is not None else slice(None)
    rows = np.arange(len(question_ids))[place]
    ids = [question_ids[row] for row in rows]
    texts = [questions[row] for row in rows] if questions is not None else None
    groups = group_questions(ids, texts)
    known = known_splits(ids, previous)
    chosen = _deal(ids, groups, np.asarray(labels)[rows], known, shares)
    splits = np.zeros(len(rows), np.uint8)
    splits[rows] = np.where(known >= 0, known, chosen[groups])
    return splits


def group_questions(
    question_ids: Sequence[str], questions: Sequence[str | None] | None
) -> Int[np.ndarray, " rows"]:
    """The group of every row, numbered by first appearance.

    Two rows are in one group if they share the id or the normalized text, directly or through
    others.
    """
    first = list(range(len(question_ids)))
    by_id: dict[str, int] = {}
    by_text: dict[str, int] = {}
    for row, question_id in enumerate(question_ids):
        _join(first, by_id.setdefault(question_id, row), row)
        text = normalize_answer((questions[row] if questions is not None else None) or "")
        if text:
            _join(first, by_text.setdefault(text, row), row)
    roots = [_find(first, row) for row in range(len(first))]
    return np.unique(np.asarray(roots, np.int64), return_inverse=True)[1]


def known_splits(
    question_ids: Sequence[str], previous: Mapping[str, str] | None
) -> Int[np.ndarray, " rows"]:
    """The split that each row had before, -1 if it is new."""
    numbers = {name: number for number, name in enumerate(SPLIT_NAMES)}
    before = {key: numbers[name] for key, name in (previous or {}).items()}
    return np.array([before.get(question_id, -1) for question_id in question_ids], np.int64)


def hash_place(key: str) -> float:
    """A number in [0, 1) that depends only on the text."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _find(first: list[int], row: int) -> int:
    while first[row] != row:
        first[row] = first[first[row]]
        row = first[row]
    return row


def _join(first: list[int], one: int, other: int) -> None:
    """Join two groups. The earlier row represents both, so that a group's name does not change as
    it grows."""
    low, high = sorted((_find(first, one), _find(first, other)))
    first[high] = low


def _deal(
    ids: Sequence[str],
    groups: Int[np.ndarray, " rows"],
    labels: np.ndarray,
    known: Int[np.ndarray, " rows"],
    shares: Shares,
) -> Int[np.ndarray, " groups"]:
    """The split of every group: those with a previous split first, then the others in order."""
    sizes = np.bincount(groups)
    # A tie counts as hallucinated, the class that a detector must find.
    hallucinated = (2 * np.bincount(groups, weights=labels > 0.5) >= sizes).tolist()
    starts = np.unique(groups, return_index=True)[1]
    chosen = np.full(len(sizes), -1, np.int64)
    for row in reversed(np.flatnonzero(known >= 0)):
        chosen[groups[row]] = known[row]
    tallies = (_Tally(shares), _Tally(shares))
    for group in np.flatnonzero(chosen >= 0):
        tallies[hallucinated[group]].add(int(chosen[group]), int(sizes[group]))
    for group in np.flatnonzero(chosen < 0):
        wanted = shares.pick(hash_place(ids[starts[group]]))
        chosen[group] = tallies[hallucinated[group]].place(wanted, int(sizes[group]))
    return chosen


class _Tally:
    """The samples of one class in each split, kept close to the shares."""

    def __init__(self, shares: Shares) -> None:
        self._shares = tuple(shares)
        self._counts = [0, 0, 0]

    def add(self, split: int, size: int) -> None:
        self._counts[split] += size

    def place(self, wanted: int, size: int) -> int:
        """Add a group to the split of its hash, unless that would upset the balance."""
        total = sum(self._counts) + size
        lacking = [s * total - n for s, n in zip(self._shares, self._counts, strict=True)]
        room = max(size, _TIGHT + (_LOOSE - _TIGHT) * min(1.0, total / _MANY))
        others = max(lack for split, lack in enumerate(lacking) if split != wanted)
        if size - lacking[wanted] > room or others > room:
            wanted = lacking.index(max(lacking))
        self.add(wanted, size)
        return wanted


@dataclass(frozen=True, kw_only=True)
class FileSplits:
    """The split of every row, and how many rows follow an earlier file than their own."""

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

    A question repeated in a later shard follows its first one. Shards with questions in `previous`
    keep their split; new ones fill up each split. Raises InputError if there are fewer shards than
    splits.
    """
    rows = np.argsort(np.asarray(batch_numbers), kind="stable")
    numbers, shard = np.unique(np.asarray(batch_numbers)[rows], return_inverse=True)
    ids = [question_ids[row] for row in rows]
    groups = group_questions(ids, [questions[row] for row in rows] if questions else None)
    known = known_splits(ids, previous)
    of_shard = _deal_shards(_shards_before(shard, known, len(numbers)), shares)
    of_group = of_shard[shard][np.unique(groups, return_index=True)[1]]
    # Duplicates follow the split of their question, even if set by hand; the earliest row decides.
    old = np.flatnonzero(known >= 0)[::-1]
    of_group[groups[old]] = known[old]
    chosen = np.where(known >= 0, known, of_group[groups])
    splits = np.zeros(len(rows), np.uint8)
    splits[rows] = chosen
    return FileSplits(split=splits, moved=int((chosen != of_shard[shard]).sum()))


def count_files(files: int, shares: Shares) -> list[int]:
    """Files per split, rounded to the correct sum: 44 at 70/15/15 make 31, 6 and 7."""
    wanted = [share > 0 for share in shares]
    if files < sum(wanted):
        raise InputError(
            f'`split_by="file"` requires at least {sum(wanted)} shards for `split="{shares}"`, '
            f'but the store has {files}: use `split_by="question"`.'
        )
    ends = [int(files * end + 0.5 + 1e-9) for end in accumulate(shares)]
    # Rounding must not leave a requested split empty.
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
