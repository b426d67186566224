"""splits.csv: one row per sample, in the order of the samples in the shards."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float32, Int, Int64, UInt8
from pyarrow import csv as arrow_csv

from clew.base.errors import InputError
from clew.base.texts import from_csv
from clew.loading.splits import SPLIT_NAMES
from clew.storage.arrow import as_numpy
from clew.storage.text_files import write_csv

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
        return arrow_csv.read_csv(
            path,
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
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
