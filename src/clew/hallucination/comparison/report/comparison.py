"""What a comparison folder holds, read and checked: results.json, scores.arrow, the logs."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.errors import StoreError
from clew.hallucination.comparison.report.answers import Answers, read_answers
from clew.pages.results import History, as_dict, as_interval, as_number, read_results

RESULTS_FILE = "results.json"
SCORES_FILE = "scores.arrow"
FAMILIES = ("baseline", "no training", "probe", "network")
_AGAIN = 'Run "clew compare" into this folder again'


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """One row of the table. `row` is as results.json has it; any figure may be missing."""

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
        """The probability above which an answer counts as made up."""
        threshold = self.figure("threshold")
        return 0.5 if threshold is None else threshold

    @property
    def chosen(self) -> dict[str, Any]:
        return as_dict(self.row.get("chosen"))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Methods stand in the order of their test AUROC, for the eye alone: `best` was chosen on
    validation. `histories` are by network, then by seed."""

    folder: Path
    methods: tuple[MethodResult, ...]
    best: MethodResult
    raw: dict[str, Any]
    test: Answers
    histories: dict[str, dict[str, History]]

    def find(self, name: str) -> MethodResult | None:
        return next((method for method in self.methods if method.name == name), None)

    @property
    def scored(self) -> tuple[MethodResult, ...]:
        """The methods whose scores of single answers are known."""
        return tuple(method for method in self.methods if method.name in self.test.scores)

    def part(self, name: str) -> dict[str, Any]:
        return as_dict(self.raw.get(name))


def read_comparison(folder: Path) -> Comparison:
    """Raises StoreError when the folder holds no finished comparison, or a damaged one."""
    raw = _read_results(folder / RESULTS_FILE)
    methods = tuple(sorted(map(_method, raw["methods"]), key=_by_test_auroc))
    return Comparison(
        folder=folder,
        methods=methods,
        best=_best(raw, methods),
        raw=raw,
        test=read_answers(folder / SCORES_FILE, [method.name for method in methods], again=_AGAIN),
        histories={
            method.name: history
            for method in methods
            if (history := _read_histories(_networks_folder(folder, raw) / method.name))
        },
    )


def _read_results(path: Path) -> dict[str, Any]:
    raw = read_results(path, made_from="comparison", again=_AGAIN)
    methods = raw.get("methods") if isinstance(raw, dict) else None
    if not isinstance(methods, list) or not methods or not all(map(_has_name, methods)):
        raise StoreError(f'"{path}" names no methods: it is not of a comparison. {_AGAIN}.')
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


def _by_test_auroc(method: MethodResult) -> float:
    return -(method.test_auroc if method.test_auroc is not None else -1.0)


def _best(raw: dict[str, Any], methods: tuple[MethodResult, ...]) -> MethodResult:
    named = as_dict(raw.get("best")).get("method")
    found = next((method for method in methods if method.name == named), None)
    return found or max(methods, key=lambda method: method.val_auroc or 0.0)


def _networks_folder(folder: Path, raw: dict[str, Any]) -> Path:
    """Of what the table was trained on: with several, each has its own, and it is the first."""
    trained_on = as_dict(raw.get("transfer")).get("train_on")
    if isinstance(trained_on, list) and len(trained_on) > 1:
        return folder / "trained_on" / str(trained_on[0]).replace("/", "--") / "networks"
    return folder / "networks"


def _read_histories(folder: Path) -> dict[str, History]:
    logs = sorted(folder.glob("seed-*/log.csv"), key=lambda path: (len(path.parent.name), path))
    return {log.parent.name.removeprefix("seed-"): _read_log(log) for log in logs}


def _read_log(path: Path) -> History:
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: _parse(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _parse(text: Any) -> float | None:
    try:
        return as_number(float(text))
    except (TypeError, ValueError):
        return None
