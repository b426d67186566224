"""Reads and checks a comparison folder: results.json, the test answers in scores.arrow with every
method's risk, and the training logs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.base.errors import StoreError
from clew.pages.markup import make_section
from clew.pages.numbers import History, as_dict, as_interval, as_number, read_results
from clew.storage.arrow import ARROW_ERRORS, read_table
from clew.storage.text_files import read_csv

# The text columns, each with the name it has in files of an earlier version of clew.
_TEXTS = {
    "category": "category",
    "question": "question",
    "question_id": "question_id",
    "answer": "answer",
    "accepted_answers": "right_answer",
    "set": "set",
}
_RISK_COLUMNS = ("risk_", "score_")  # the latter is the name in files of an earlier version of clew
RESULTS_FILE = "results.json"
SCORES_FILE = "scores.arrow"
# The families of methods, each with a color from the pages' palette.
_COLOR_OF = {"baseline": "gray", "no training": "gold", "probe": "blue", "network": "red"}
FAMILIES = tuple(_COLOR_OF)
CHANCE = 0.5  # the AUROC at chance level
SIGNIFICANT = 0.05  # p-values below it
FEWEST = 10  # answers of a class, below which nothing is said about significance
report_section = partial(make_section, __package__)
AGAIN = 'Run "clew compare" again with this output folder'


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers of a comparison, usually of the test split, one row each. `labels` are 1 for
    hallucinated; `risks` maps each method to its probability of that; `numbers` are the
    global_example_id (-1 if unknown)."""

    labels: np.ndarray
    risks: dict[str, np.ndarray]
    numbers: np.ndarray
    texts: dict[str, list[str | None]]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def has_both_classes(self) -> bool:
        return 0 < int(self.labels.sum()) < len(self.labels)

    def text(self, name: str, row: int) -> str | None:
        return self.texts[name][row]


def read_answers(
    path: Path, methods: Sequence[str], *, again: str, splits: Sequence[str] = ("test",)
) -> Answers:
    """Read the answers of scores.arrow. A method without a column, or with a non-finite risk, is
    excluded from `risks`.

    `again` says what to do about a missing or damaged file (StoreError)."""
    table = _read_table(path, again)
    missing = {"split", "label"} - set(table.column_names)
    if missing:
        raise StoreError(f'"{path}" has no column {", ".join(sorted(missing))}. {again}.')
    test = table.filter(pc.is_in(table["split"], pa.array(splits, pa.string())))
    columns = {
        name: _numbers(test.column(f"{prefix}{name}"))
        for name in methods
        for prefix in _RISK_COLUMNS
        if f"{prefix}{name}" in test.schema.names
    }
    return Answers(
        labels=_numbers(test["label"]).astype(np.int8),
        risks={name: values for name, values in columns.items() if np.isfinite(values).all()},
        numbers=_example_ids(test),
        texts={name: _texts(test, name, old) for name, old in _TEXTS.items()},
    )


def _read_table(path: Path, again: str) -> pa.Table:
    try:
        return read_table(path)
    except FileNotFoundError:
        raise StoreError(f'There is no "{path.name}" in "{path.parent}". {again}.') from None
    except ARROW_ERRORS as error:
        raise StoreError(f'"{path}" cannot be read ({error}). {again}.') from None


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return column.to_numpy().astype(np.float64)


def _example_ids(table: pa.Table) -> np.ndarray:
    """-1 if unknown, and for answers of several stores, whose numbers overlap."""
    unknown = np.full(len(table), -1)
    if "global_example_id" not in table.schema.names:
        return unknown
    column = table.column("global_example_id").fill_null(-1)
    numbers = column.to_numpy().astype(np.int64)
    has_sets = "set" in table.schema.names
    return unknown if has_sets and len(np.unique(numbers)) < len(numbers) else numbers


def _texts(table: pa.Table, name: str, old_name: str) -> list[str | None]:
    found = [column for column in (name, old_name) if column in table.schema.names]
    if not found:
        return [None] * len(table)
    values = table.column(found[0]).to_pylist()
    return [None if value is None else _as_text(value) for value in values]


def _as_text(value: object) -> str:
    """The value as text; several accepted answers are joined on one line."""
    return " / ".join(map(str, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """One row of the table. `row` is as in results.json; any figure may be missing."""

    name: str
    title: str
    family: str
    row: dict[str, Any]

    def figure(self, name: str) -> float | None:
        return as_number(self.row.get(name))

    @property
    def test_auroc(self) -> float | None:
        return self.figure("test_auroc")

    @property
    def val_auroc(self) -> float | None:
        return self.figure("val_auroc")

    @property
    def interval(self) -> tuple[float, float] | None:
        return as_interval(self.row.get("test_auroc_ci"))

    @property
    def threshold(self) -> float:
        """The risk above which an answer has a high risk."""
        threshold = self.figure("threshold")
        return 0.5 if threshold is None else threshold

    @property
    def chosen(self) -> dict[str, Any]:
        return as_dict(self.row.get("chosen"))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A finished comparison, as read from its folder. Methods are sorted by test AUROC for display
    only: `best` was chosen on validation. `histories` are by network, then by seed."""

    folder: Path
    methods: tuple[MethodResult, ...]
    best: MethodResult
    raw: dict[str, Any]
    test: Answers
    histories: dict[str, dict[str, History]]

    def find(self, name: str) -> MethodResult | None:
        return next((method for method in self.methods if method.name == name), None)

    @property
    def has_best(self) -> bool:
        """Whether there were enough answers to call a method the best."""
        return as_dict(self.raw.get("best")).get("is_supported") is not False

    @property
    def has_enough_tests(self) -> bool:
        """Whether there are enough test answers of both classes to compare methods on them."""
        hallucinated = int(self.test.labels.sum())
        return min(hallucinated, len(self.test) - hallucinated) >= FEWEST

    @property
    def chosen_on(self) -> str:
        """Where the best method was chosen."""
        return str(as_dict(self.raw.get("best")).get("chosen_on") or "validation")

    @property
    def scored(self) -> tuple[MethodResult, ...]:
        """The methods with a known risk for every test answer."""
        return tuple(method for method in self.methods if method.name in self.test.risks)

    def part(self, name: str) -> dict[str, Any]:
        return as_dict(self.raw.get(name))


def read_comparison(folder: Path) -> Comparison:
    """Read a comparison folder. Raises StoreError if it holds no finished comparison, or a damaged
    one."""
    raw = _read_results(folder / RESULTS_FILE)
    methods = tuple(
        sorted(
            map(_method, raw["methods"]),
            key=lambda method: -(-1.0 if method.test_auroc is None else method.test_auroc),
        )
    )
    return Comparison(
        folder=folder,
        methods=methods,
        best=_best(raw, methods),
        raw=raw,
        test=read_answers(folder / SCORES_FILE, [method.name for method in methods], again=AGAIN),
        histories={
            method.name: history
            for method in methods
            if (history := _read_histories(_networks_folder(folder, raw) / method.name))
        },
    )


def _read_results(path: Path) -> dict[str, Any]:
    raw = read_results(path, made_from="comparison", again=AGAIN)
    methods = raw.get("methods") if isinstance(raw, dict) else None
    if not isinstance(methods, list) or not methods or not all(map(_has_name, methods)):
        raise StoreError(
            f'"{path}" lists no methods, so it was not written by a comparison. {AGAIN}.'
        )
    return raw


def _has_name(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("method"), str)


def _method(row: dict[str, Any]) -> MethodResult:
    name = row["method"]
    family = row.get("family")
    return MethodResult(
        name=name,
        title=str(row.get("title") or name),
        family=family if family in FAMILIES else "other",
        row=row,
    )


def _best(raw: dict[str, Any], methods: tuple[MethodResult, ...]) -> MethodResult:
    named = as_dict(raw.get("best")).get("method")
    found = next((method for method in methods if method.name == named), None)
    return found or max(methods, key=lambda method: method.val_auroc or 0.0)


def _networks_folder(folder: Path, raw: dict[str, Any]) -> Path:
    """The networks behind the table: with several training sets, those of the first."""
    told = raw.get("networks")
    if isinstance(told, str) and not Path(told).is_absolute() and ".." not in Path(told).parts:
        return folder / told
    trained_on = as_dict(raw.get("transfer")).get("train_on")
    if isinstance(trained_on, list) and len(trained_on) > 1:
        return folder / "trained_on" / str(trained_on[0]).replace("/", "--") / "networks"
    return folder / "networks"


def _read_histories(folder: Path) -> dict[str, History]:
    logs = sorted(folder.glob("seed-*/log.csv"), key=lambda path: (len(path.parent.name), path))
    return {log.parent.name.removeprefix("seed-"): _read_log(log) for log in logs}


def _read_log(path: Path) -> History:
    """Without rows if it cannot be read: a report without the curves is still a report."""
    try:
        rows = read_csv(path)
    except (OSError, ValueError):
        return []
    return [{name: _parse(text) for name, text in row.items()} for row in rows]


def _parse(text: Any) -> float | None:
    try:
        return as_number(float(text))
    except (TypeError, ValueError):
        return None


def color_of(family: str) -> str:
    """A name in `COLORS`, which is also a CSS class."""
    return _COLOR_OF.get(family, "green")
