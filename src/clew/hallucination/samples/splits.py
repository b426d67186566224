"""splits.csv: one row per sample, in the order of the samples in the shards."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float32, Int, Int64, UInt8
from pyarrow import csv as arrow_csv

from clew.base.errors import InputError
from clew.base.texts import from_csv
from clew.hallucination.labels import normalize_answer
from clew.loading.splits import SPLIT_NAMES, Shares
from clew.storage.arrow import as_numpy
from clew.storage.reading import hash_text
from clew.storage.text_files import find_csv_form, write_csv

SPLITS_FILE = "splits.csv"
_TYPES = {
    "global_example_id": pa.int64(),
    "question_id": pa.string(),
    "split": pa.string(),
    "label": pa.float32(),
    "score": pa.float32(),
}
# Spellings in files edited by hand.
_OTHER_NAMES = {"val": "validation", "valid": "validation", "dev": "validation"}


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The columns of splits.csv; `split` is an index of SPLIT_NAMES, `label` 1 is hallucinated."""

    global_example_id: Int64[np.ndarray, " rows"]
    question_id: pa.StringArray
    split: UInt8[np.ndarray, " rows"]
    label: Float32[np.ndarray, " rows"]
    score: Float32[np.ndarray, " rows"]

    def __len__(self) -> int:
        return len(self.split)

    def by_question(self, path: Path) -> dict[str, str]:
        """The split of every question; raises InputError if one is in two."""
        found: dict[str, str] = {}
        for question_id, split in zip(self.question_id.to_pylist(), self.split, strict=True):
            name = SPLIT_NAMES[split]
            if found.setdefault(question_id, name) != name:
                raise InputError(
                    f'"{path}" has question {question_id!r:.60} in {found[question_id]} and in '
                    f"{name}: a detector would be tested on its training data. Put all its rows "
                    "into one split."
                )
        return found


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The samples of one split."""

    correct: int
    hallucinated: int

    @classmethod
    def of(cls, labels: np.ndarray) -> "Balance":
        hallucinated = int((labels > 0.5).sum())
        return cls(correct=len(labels) - hallucinated, hallucinated=hallucinated)

    @property
    def samples(self) -> int:
        return self.correct + self.hallucinated


def write_splits(path: Path, table: Splits) -> None:
    """Write the file atomically: readers see the old one or the new one, never a part."""
    names = np.array(SPLIT_NAMES)[table.split].tolist()
    ids, question_ids = table.global_example_id.tolist(), table.question_id.to_pylist()
    # Arrow writes the shortest text that reads back as the same float32.
    scores = pa.array(table.score).cast(pa.string()).to_pylist()
    labels = (table.label > 0.5).astype(int).tolist()
    write_csv(path, [*_TYPES], zip(ids, question_ids, names, labels, scores, strict=True))


def read_splits(path: str | Path) -> Splits:
    """Read splits.csv, even if edited by hand; raises InputError with the line number."""
    path = Path(path)
    table = _read_table(path)
    missing = [name for name in _TYPES if name not in table.column_names]
    if missing:
        raise InputError(
            f'"{path}" has no column "{missing[0]}"; it has: '
            f"{', '.join(table.column_names)}. {_WAY_OUT}"
        )
    columns = {name: table[name].combine_chunks() for name in _TYPES}
    for name, column in columns.items():
        if column.null_count:
            _refuse(path, column.is_null(), f'has no "{name}"')
    numbers = _number_splits(path, columns["split"])
    table_ids = as_numpy(columns["global_example_id"])
    label = as_numpy(columns["label"])
    _refuse(path, ~np.isin(label, (0, 1)), "has a label that is neither 0 nor 1")
    repeated = np.ones(len(table_ids), bool)
    repeated[np.unique(table_ids, return_index=True)[1]] = False
    _refuse(path, repeated, "repeats the global_example_id of an earlier line")
    return Splits(
        global_example_id=table_ids,
        question_id=_unescape(columns["question_id"]),
        split=numbers,
        label=label,
        score=as_numpy(columns["score"]),
    )


def count_labels(
    split: UInt8[np.ndarray, " rows"], label: Float32[np.ndarray, " rows"]
) -> Int[np.ndarray, "splits classes"]:
    """Samples of every split (rows) that are correct (column 0) and hallucinated (column 1)."""
    places = split.astype(np.int64) * 2 + (np.asarray(label) > 0.5)
    return np.bincount(places, minlength=6).reshape(3, 2)


def find_thin_splits(
    counts: Int[np.ndarray, "splits classes"], shares: Sequence[float]
) -> list[str]:
    """A warning for every split that should contain both classes and does not."""
    found = []
    for name, row, share in zip(SPLIT_NAMES, counts.tolist(), shares, strict=True):
        lacking = [
            what for what, count in zip(("correct", "hallucinated"), row, strict=True) if not count
        ]
        if share and lacking and counts.any(0).all():
            found.append(
                f"the {name} split ({sum(row):,} answers in total) has no "
                f"{' or '.join(lacking)} answers, so nothing can be evaluated on it. Use more "
                "questions, or give it a larger share with `split`."
            )
    return found


_WAY_OUT = 'Fix it, or delete the file and run the same "clew preprocess" command again.'


def _read_table(path: Path) -> pa.Table:
    options = arrow_csv.ConvertOptions(
        column_types=_TYPES, strings_can_be_null=False, null_values=["", "nan", "NaN"]
    )
    try:
        encoding, delimiter = find_csv_form(path)
        return arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(encoding=encoding),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=options,
            # Arrow's own memory pool would keep several times the size of the table.
            memory_pool=pa.system_memory_pool(),
        )
    except FileNotFoundError:
        raise InputError(
            f'there is no "{path}": create it with "clew preprocess", or check the path.'
        ) from None
    except OSError as error:
        raise InputError(
            f'"{path}" cannot be read ({error.strerror or error}): check its permissions.'
        ) from None
    except (pa.ArrowException, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f'"{path}" is truncated or malformed ({reason}). {_WAY_OUT}') from None


def _unescape(column: pa.StringArray) -> pa.StringArray:
    """The IDs as they were before they were made safe for spreadsheets; nearly always the same."""
    marked = pc.match_substring_regex(column, r"^'|\\[uU]")
    if not pc.any(marked).as_py():
        return column
    return pa.array(map(from_csv, column.to_pylist()), pa.string())


def _number_splits(path: Path, names: pa.StringArray) -> UInt8[np.ndarray, " rows"]:
    coded = pc.utf8_lower(pc.utf8_trim_whitespace(names)).dictionary_encode()
    found = [_OTHER_NAMES.get(name, name) for name in coded.dictionary.to_pylist()]
    places = as_numpy(coded.indices)
    unknown = np.isin(places, [at for at, name in enumerate(found) if name not in SPLIT_NAMES])
    if unknown.any():
        row = int(unknown.argmax())
        raise InputError(
            f'"{path}", line {row + 2}: unknown split {names[row].as_py()!r:.60}: use '
            f"{', '.join(SPLIT_NAMES[:2])} or {SPLIT_NAMES[2]}."
        )
    return np.array([SPLIT_NAMES.index(name) for name in found], np.uint8)[places]


def _refuse(path: Path, wrong: pa.Array | np.ndarray, what: str) -> None:
    """Raises InputError for the first invalid line."""
    mask = wrong if isinstance(wrong, np.ndarray) else wrong.to_numpy(zero_copy_only=False)
    if mask.any():
        raise InputError(f'"{path}", line {int(mask.argmax()) + 2} {what}. {_WAY_OUT}')


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
    groups: Sequence[str | None] | None = None,
) -> UInt8[np.ndarray, " rows"]:
    """The split of every row: 0 training, 1 validation, 2 test.

    Rows of one group of `group_questions` stay together. Groups are assigned in `order` (numbers to
    sort the rows by, such as their `global_example_id`; the given order if None), so that appended
    rows change nothing before them. `previous` maps question ids to split names that are kept.
    """
    place = np.argsort(np.asarray(order), kind="stable") if order is not None else slice(None)
    rows = np.arange(len(question_ids))[place]
    ids = [question_ids[row] for row in rows]
    together = group_questions(ids, _take(questions, rows), _take(groups, rows))
    known = splits_before(ids, previous)
    chosen = _deal(ids, together, np.asarray(labels)[rows], known, shares)
    splits = np.zeros(len(rows), np.uint8)
    splits[rows] = np.where(known >= 0, known, chosen[together])
    return splits


def _take(
    values: Sequence[str | None] | None, rows: Int[np.ndarray, " rows"]
) -> list[str | None] | None:
    return None if values is None else [values[row] for row in rows]


def name_groups(
    groups: Sequence[str | None],
    questions: Sequence[str | None],
    contexts: Sequence[str | None] | None,
) -> list[str | None]:
    """What must not be split of given answers: the group that their file names, else the question
    with its source, since every source may be asked the same; None for a question alone."""
    rows = zip(groups, questions, contexts or [None] * len(groups), strict=True)
    return [
        group or (None if not context else hash_text(question or "", context))
        for group, question, context in rows
    ]


def group_questions(
    question_ids: Sequence[str],
    questions: Sequence[str | None] | None,
    groups: Sequence[str | None] | None = None,
) -> Int[np.ndarray, " rows"]:
    """The group of every row, numbered by first appearance.

    Two rows are in one group if they share the id, the name of their group, or, where there is
    none, the normalized text of the question; directly or through others.
    """
    first = list(range(len(question_ids)))
    by_id: dict[str, int] = {}
    by_name: dict[str, int] = {}
    by_text: dict[str, int] = {}
    for row, question_id in enumerate(question_ids):
        _join(first, by_id.setdefault(question_id, row), row)
        name = None if groups is None else groups[row]
        text = "" if name or questions is None else normalize_answer(questions[row] or "")
        if name:
            _join(first, by_name.setdefault(name, row), row)
        elif text:
            _join(first, by_text.setdefault(text, row), row)
    roots = [_find(first, row) for row in range(len(first))]
    return np.unique(np.asarray(roots, np.int64), return_inverse=True)[1]


def splits_before(
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
    sizes, hallucinated = np.bincount(groups), _mostly_hallucinated(groups, labels).tolist()
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


def _mostly_hallucinated(groups: Int[np.ndarray, " rows"], labels: np.ndarray) -> np.ndarray:
    """Of each group; a tie counts as hallucinated, the class that a detector must find."""
    return 2 * np.bincount(groups, weights=labels > 0.5) >= np.bincount(groups)


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


def assign_splits_by_file(
    batch_numbers: Sequence[int] | np.ndarray,
    question_ids: Sequence[str],
    questions: Sequence[str | None] | None,
    *,
    shares: Shares,
    previous: Mapping[str, str] | None = None,
    groups: Sequence[str | None] | None = None,
) -> tuple[UInt8[np.ndarray, " rows"], int]:
    """Shards in order: the first ones for training, then validation, then test. The split of every
    row, and how many rows follow an earlier file than their own.

    A question or group repeated in a later shard follows its first one. Shards with questions in
    `previous` keep their split; new ones fill up each split. Raises InputError if there are fewer
    shards than splits.
    """
    rows = np.argsort(np.asarray(batch_numbers), kind="stable")
    numbers, shard = np.unique(np.asarray(batch_numbers)[rows], return_inverse=True)
    ids = [question_ids[row] for row in rows]
    together = group_questions(ids, _take(questions, rows), _take(groups, rows))
    known = splits_before(ids, previous)
    of_shard = _deal_shards(_shards_before(shard, known, len(numbers)), shares)
    of_group = of_shard[shard][np.unique(together, return_index=True)[1]]
    # Duplicates follow the split of their question, even if set by hand; the earliest row decides.
    old = np.flatnonzero(known >= 0)[::-1]
    of_group[together[old]] = known[old]
    chosen = np.where(known >= 0, known, of_group[together])
    splits = np.zeros(len(rows), np.uint8)
    splits[rows] = chosen
    return splits, int((chosen != of_shard[shard]).sum())


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


def assign_folds(
    question_ids: Sequence[str],
    questions: Sequence[str | None] | None,
    labels: np.ndarray,
    *,
    folds: int,
    groups: Sequence[str | None] | None = None,
) -> Int[np.ndarray, " rows"]:
    """The fold of every row, from 0. Rows of one group of `group_questions` stay together; each
    class is dealt out in the order of a hash. Raises InputError if a class has fewer questions than
    there are folds."""
    together = group_questions(question_ids, questions, groups)
    _, firsts = np.unique(together, return_index=True)
    hallucinated = _mostly_hallucinated(together, labels)
    chosen = np.zeros(len(firsts), np.int64)
    dealt = 0
    for kind in (False, True):
        ours = np.flatnonzero(hallucinated == kind)
        places = {group: hash_place(question_ids[int(firsts[group])]) for group in ours.tolist()}
        order = sorted(places, key=lambda group: places[group])
        chosen[order] = (np.arange(len(order)) + dealt) % folds
        dealt += len(order)
    found = chosen[together]
    for name, rows in (("correct", labels <= 0.5), ("hallucinated", labels > 0.5)):
        if len(np.unique(found[rows])) < folds:
            raise InputError(
                f"there are {len(np.unique(together[rows])):,} questions with {name} answers, but "
                "every fold must have one or more: give fewer folds, or use more questions.",
                setting="folds",
                value=folds,
            )
    return found
