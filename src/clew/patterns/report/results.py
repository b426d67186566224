"""The folder of a training or an evaluation, read and checked, and what it achieved: one sentence,
the details behind it, and the key figures."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clew.base.errors import StoreError
from clew.base.texts import counted, list_some, tenth_percent
from clew.base.urls import as_path
from clew.pages.markup import Html, tag
from clew.pages.numbers import (
    DASH,
    History,
    as_dict,
    as_interval,
    as_number,
    decimals,
    read_results,
)
from clew.patterns.photos.photo import Fault
from clew.patterns.results_file import RESULTS, describe_suspects
from clew.patterns.trained.tables import EXCLUDED_FILE, OLD_EXCLUDED_FILE, PREDICTIONS_FILE
from clew.storage.text_files import read_csv

LOG_FILE = "log.csv"
_AGAIN = 'Run "clew patterns train" again with this output folder'
_FEW = 100  # with fewer test photos, one photo changes the accuracy by more than a percentage point


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
    path = folder / RESULTS
    raw = as_dict(read_results(path, made_from="training or evaluation", again=_AGAIN))
    classes = raw.get("classes")
    if not isinstance(classes, list) or not classes:
        raise StoreError(
            f'"{path}" lists no classes, so it was not written by a photo classifier. {_AGAIN}.'
        )
    excluded = _read_table(folder / EXCLUDED_FILE) or _read_table(folder / OLD_EXCLUDED_FILE)
    return Run(
        folder=folder,
        raw=raw,
        classes=tuple(map(str, classes)),
        answers=tuple(
            PhotoAnswer(
                name=row.get("name") or "",
                label=row.get("class") or "",
                predicted=row.get("predicted") or "",
                probability=_number(row.get("probability")) or 0.0,
                second=row.get("second") or "",
                second_probability=_number(row.get("second_probability")) or 0.0,
            )
            for row in _read_table(folder / PREDICTIONS_FILE)
        ),
        excluded=tuple(
            Fault(
                name=row.get("name") or "",
                label=row.get("class") or None,
                kind=row.get("kind") or "",
                reason=row.get("reason") or "",
            )
            for row in excluded
        ),
        history=[
            {name: _number(text) for name, text in row.items()}
            for row in _read_table(folder / LOG_FILE)
        ],
    )


def _read_table(path: Path) -> list[dict[str, str]]:
    try:
        return read_csv(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise StoreError(f'"{path}" cannot be read ({error}). {_AGAIN}.') from None


def _number(text: Any) -> float | None:
    try:
        return as_number(float(text))
    except (TypeError, ValueError):
        return None


def describe_headline(run: Run) -> str:
    accuracy = run.figure("test_accuracy")
    if accuracy is None:
        return "The test accuracy is unknown."
    right = round(accuracy * run.test_photos)
    return (
        f"{right:,} of {run.test_photos:,} test photos in "
        f"{counted(len(run.classes), 'class', 'classes')} are classified correctly "
        f"({percents(accuracy)})."
    )


def describe_details(run: Run) -> list[str]:
    before, count = run.figure("trained_test_accuracy"), run.trained_before
    untested = classes_without(run, "validation")
    verb = "has" if len(untested) == 1 else "have"
    sentences = (
        _describe_interval(run),
        count
        and f"This run started from weights that were trained on {counted(count, 'test photo')}, "
        "so this accuracy is too optimistic.",
        before is not None
        and f"On the test photos of its own training run, its accuracy was {percents(before)}.",
        _describe_copies(run),
        _describe_weakest(run),
        _describe_confused(run),
        describe_suspects(run.raw),
        untested
        and f"{counted(len(untested), 'class', 'classes')} {verb} no validation photos: "
        f"{list_some(untested)}.",
    )
    return [sentence for sentence in sentences if sentence]


def _describe_interval(run: Run) -> str:
    if run.is_seen:
        return (
            "The model was trained or validated on all of these photos: this accuracy says nothing "
            "about new photos."
        )
    if run.interval is None:
        return ""
    low, high = run.interval
    few = f" It is wide because there are only {run.test_photos:,} test photos."
    return (
        f"On other photos of the same kind, expect between {percents(low)} and {percents(high)} "
        f"(95% confidence interval).{few if 0 < run.test_photos < _FEW else ''}"
    )


def _describe_copies(run: Run) -> str:
    copies = int(as_number(run.part("data").get("test_near_duplicates")) or 0)
    if not copies:
        return ""
    are = "is a near duplicate" if copies == 1 else "are near duplicates"
    return (
        f"{counted(copies, 'test photo')} {are} of training photos, so this accuracy is too "
        "optimistic."
    )


def _describe_weakest(run: Run) -> str:
    known = [
        (recall, row)
        for row in run.per_class
        if (recall := as_number(row.get("recall"))) is not None and as_number(row.get("test"))
    ]
    if len(known) < 2:
        return ""
    recall, row = min(known, key=lambda pair: pair[0])
    if recall == 1:
        return "There are no mistakes in any class."
    return (
        f'Hardest class: "{row["class"]}", with a recall of {percents(recall)} on '
        f"{counted(int(row['test']), 'test photo')}."
    )


def _describe_confused(run: Run) -> str:
    pairs = confused_pairs(run)
    if not pairs or pairs[0][2] < 2:
        return ""
    label, predicted, count = pairs[0]
    return (
        f'Most frequent mistake: "{label}" predicted as "{predicted}", {counted(count, "photo")}.'
    )


def classes_without(run: Run, split: str) -> list[str]:
    """The classes that have no photos in this split; none where the counts are unknown."""
    return [str(row["class"]) for row in run.per_class if as_number(row.get(split)) == 0]


def confused_pairs(run: Run) -> list[tuple[str, str, int]]:
    """(true class, predicted class, photos), the most frequent first."""
    confusion = run.confusion
    if confusion is None:
        return []
    pairs = [
        (run.classes[row], run.classes[column], int(confusion[row, column]))
        for row, column in zip(*confusion.nonzero(), strict=True)
        if row != column
    ]
    return sorted(pairs, key=lambda pair: -pair[2])


def draw_tiles(run: Run) -> Html:
    interval, excluded = run.interval, sum(run.excluded_kinds.values())
    between = f"95% CI: {percents(interval[0])} to {percents(interval[1])}" if interval else ""
    photos = f"of {counted(run.test_photos, 'test photo')}"
    photos += f"; {counted(excluded, 'file')} excluded" if excluded else ""
    tiles = (
        ("test accuracy", percents(run.figure("test_accuracy")), between),
        ("mistakes", f"{len(run.mistakes):,}" if run.answers else DASH, photos),
        ("macro F1", decimals(run.figure("test_macro_f1")), "mean over classes"),
        (
            "calibration error",
            percents(run.figure("test_ece")),
            "ECE: mean gap between confidence and accuracy",
        ),
    )
    drawn = [
        tag(
            "div",
            tag("div", name, class_="tile-name"),
            tag("div", figure, class_="figure"),
            tag("div", words, class_="muted"),
            class_=f"tile blue{'' if place else ' best'}",
        )
        for place, (name, figure, words) in enumerate(tiles)
    ]
    return tag("div", drawn, class_="tiles")


def percents(value: float | None) -> str:
    return DASH if value is None else tenth_percent(value)


def describe_network(run: Run) -> str:
    network: Any = run.raw.get("network")
    name = as_dict(network).get("name") if isinstance(network, dict) else network
    size = run.figure("image_size")
    return f"{name or 'network'}{f' at {size:.0f} px' if size else ''}"
