"""Reads and checks the folder of a training or an evaluation."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clew.base.errors import StoreError
from clew.base.urls import as_path
from clew.pages.numbers import History, as_dict, as_interval, as_number, read_results
from clew.patterns.photos.photo import Fault
from clew.patterns.trained.model import RESULTS
from clew.patterns.trained.tables import EXCLUDED_FILE, OLD_EXCLUDED_FILE, PREDICTIONS_FILE
from clew.storage.text_files import read_csv

LOG_FILE = "log.csv"
_AGAIN = 'Run "clew patterns train" again with this output folder'


@dataclass(frozen=True, kw_only=True, slots=True)
class PhotoAnswer:
    """What the model predicted for one test photo."""

    name: str
    label: str
    predicted: str
    probability: float
    second: str
    second_probability: float

    @property
    def is_correct(self) -> bool:
        return self.label == self.predicted


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training or an evaluation, as read from its folder. `raw` is results.json, in which any
    value may be missing; a list is empty if its file is missing."""

    folder: Path
    raw: dict[str, Any]
    classes: tuple[str, ...]
    answers: tuple[PhotoAnswer, ...]
    excluded: tuple[Fault, ...]
    history: History

    def figure(self, name: str) -> float | None:
        return as_number(self.raw.get(name))

    def part(self, name: str) -> dict[str, Any]:
        return as_dict(self.raw.get(name))

    @property
    def interval(self) -> tuple[float, float] | None:
        return as_interval(self.raw.get("test_accuracy_ci"))

    @property
    def test_photos(self) -> int:
        return int(self.figure("test_photos") or len(self.answers))

    @property
    def per_class(self) -> list[dict[str, Any]]:
        """One row per class, in the order of `classes`."""
        rows = [as_dict(row) for row in self.raw.get("per_class") or ()]
        by_name = {row.get("class"): row for row in rows}
        return [{"class": name, **by_name.get(name, {})} for name in self.classes]

    @property
    def confusion(self) -> np.ndarray | None:
        """Test photos by true class (row) and predicted class (column)."""
        size = len(self.classes)
        try:
            counts = np.array(self.raw.get("confusion"), dtype=np.int64)
        except (TypeError, ValueError):
            return None
        return counts if counts.shape == (size, size) else None

    @property
    def mistakes(self) -> list[PhotoAnswer]:
        """The misclassified test photos, the most confident first."""
        wrong = [answer for answer in self.answers if not answer.is_correct]
        return sorted(wrong, key=lambda answer: (-answer.probability, answer.name))

    @property
    def excluded_kinds(self) -> dict[str, int]:
        data = self.part("data")
        counts = as_dict(data.get("excluded", data.get("left_out")))  # its name in earlier versions
        return {str(kind): int(as_number(count) or 0) for kind, count in counts.items()} or dict(
            Counter(one.kind for one in self.excluded).most_common()
        )

    @property
    def is_seen(self) -> bool:
        """Whether the model was trained on all photos of an evaluation."""
        return self.part("data").get("all_seen") is True

    @property
    def trained_before(self) -> int:
        """The number of test photos that the starting weights were trained on."""
        data = self.part("data")
        seen = data.get("test_seen_before", data.get("test_learnt_before"))  # as earlier versions
        return int(as_number(seen) or 0)

    @property
    def data_folder(self) -> Path | None:
        folder = self.part("data").get("folder")
        return Path(folder) if isinstance(folder, str) else None

    @property
    def model_folder(self) -> Path:
        """The folder of the model: an evaluation names it, a training run is its own."""
        model = self.raw.get("model")
        return as_path(model) if isinstance(model, str) else self.folder


def read_run(folder: Path) -> Run:
    """Read the folder of a training or an evaluation. Raises StoreError if it holds none that is
    finished, or a damaged one."""
    raw = _read_results(folder / RESULTS)
    return Run(
        folder=folder,
        raw=raw,
        classes=tuple(map(str, raw["classes"])),
        answers=tuple(map(_answer, _read_table(folder / PREDICTIONS_FILE))),
        excluded=tuple(map(_excluded, _read_excluded(folder))),
        history=[
            {name: _number(text) for name, text in row.items()}
            for row in _read_table(folder / LOG_FILE)
        ],
    )


def _read_results(path: Path) -> dict[str, Any]:
    raw = read_results(path, made_from="training or evaluation", again=_AGAIN)
    classes = raw.get("classes") if isinstance(raw, dict) else None
    if not isinstance(classes, list) or not classes:
        raise StoreError(
            f'"{path}" lists no classes, so it was not written by a photo classifier. {_AGAIN}.'
        )
    return dict(raw)


def _read_table(path: Path) -> list[dict[str, str]]:
    try:
        return read_csv(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise StoreError(f'"{path}" cannot be read ({error}). {_AGAIN}.') from None


def _read_excluded(folder: Path) -> list[dict[str, str]]:
    return _read_table(folder / EXCLUDED_FILE) or _read_table(folder / OLD_EXCLUDED_FILE)


def _answer(row: dict[str, str]) -> PhotoAnswer:
    return PhotoAnswer(
        name=row.get("name") or "",
        label=row.get("class") or "",
        predicted=row.get("predicted") or "",
        probability=_number(row.get("probability")) or 0.0,
        second=row.get("second") or "",
        second_probability=_number(row.get("second_probability")) or 0.0,
    )


def _excluded(row: dict[str, str]) -> Fault:
    return Fault(
        name=row.get("name") or "",
        label=row.get("class") or None,
        kind=row.get("kind") or "",
        reason=row.get("reason") or "",
    )


def _number(text: Any) -> float | None:
    try:
        return as_number(float(text))
    except (TypeError, ValueError):
        return None
