"""What is in a set: its classes, its training runs, and what was added since."""

import os
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from clew.base.errors import StoreError
from clew.patterns.library.folders import (
    LIBRARY,
    RESULTS,
    Change,
    compare_photos,
    is_finished,
    read_results,
)
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.photos.photo import natural_order

MIN_PHOTOS = 3  # per class: one for each split


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One training run; metrics are None while it is not finished."""

    folder: Path
    is_finished: bool
    finished: str | None = None
    photos: int | None = None
    test_accuracy: float | None = None
    test_accuracy_ci: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class SetSummary:
    """A set as it is now. `change` is what its model has not seen; None without a model."""

    name: str
    folder: Path
    created: str
    classes: dict[str, int]
    bytes: int
    runs: tuple[RunSummary, ...]
    change: Change | None

    @property
    def photos(self) -> int:
        return sum(self.classes.values())

    @property
    def model(self) -> RunSummary | None:
        return next((run for run in reversed(self.runs) if run.is_finished), None)

    def small_classes(self) -> list[str]:
        """Classes with too few photos to train and test on."""
        return [label for label, photos in self.classes.items() if photos < MIN_PHOTOS]


def summarize_set(pattern_set: PatternSet) -> SetSummary:
    """Summarize a set. Raises StoreError if its set.json is damaged."""
    photos = pattern_set.find_photos()
    counts = Counter(photo.label for photo in photos if photo.label is not None)
    model = pattern_set.latest_model()
    return SetSummary(
        name=pattern_set.name,
        folder=pattern_set.folder,
        created=pattern_set.created(),
        classes={label: counts[label] for label in sorted(counts, key=natural_order)},
        bytes=sum(_size(photo.path) for photo in photos),
        runs=tuple(map(_summarize_run, pattern_set.all_runs())),
        change=None if model is None else compare_photos(model, {one.name for one in photos}),
    )


def summarize_library(library: Path = LIBRARY) -> tuple[list[SetSummary], list[StoreError]]:
    """All sets, by name; a damaged one does not hide the others."""
    summaries, damaged = [], []
    for one in PatternSet.all(library):
        try:
            summaries.append(summarize_set(one))
        except StoreError as error:
            damaged.append(error)
    return summaries, damaged


def _summarize_run(run: Path) -> RunSummary:
    if not is_finished(run):
        return RunSummary(folder=run, is_finished=False)
    results = read_results(run)
    interval = results.get("test_accuracy_ci")
    return RunSummary(
        folder=run,
        is_finished=True,
        finished=_date((run / RESULTS).stat().st_mtime),
        photos=(results.get("data") or {}).get("photos"),
        test_accuracy=results.get("test_accuracy"),
        test_accuracy_ci=tuple(interval) if interval else None,
    )


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0  # just deleted
