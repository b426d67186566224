"""The results that the steps return."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from clew.base.tables import Tabular
from clew.base.texts import counted, tenth_percent

if TYPE_CHECKING:
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.trained.model import PatternModel


@dataclass(frozen=True, kw_only=True, repr=False)
class ClassifierResult(Tabular):
    """A photo classifier and its metrics on test photos.

    `path` is the folder with results.json and the report, `model` the folder of the classifier,
    `raw` the contents of results.json. `is_new` is False if a set was not trained again because its
    photos have not changed.
    """

    path: Path
    model: Path
    raw: dict[str, Any]
    pattern_set: "PatternSet | None" = None
    is_new: bool = True

    @property
    def accuracy(self) -> float:
        """Share of the test photos that were classified correctly."""
        return float(self.raw["test_accuracy"])

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% confidence interval of the accuracy."""
        low, high = self.raw["test_accuracy_ci"]
        return float(low), float(high)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.raw["classes"])

    @property
    def table(self) -> pa.Table:
        """One row per class: precision, recall, F1 and the number of photos per split."""
        return pa.Table.from_pylist(self.raw["per_class"])

    @property
    def confusion(self) -> list[list[int]]:
        """Test photos by true class (row) and predicted class (column)."""
        return [list(row) for row in self.raw["confusion"]]

    @property
    def report(self) -> Path:
        """The report: all metrics, and the mistakes."""
        return self.path / "report.html"

    def load(self, device: str | None = None) -> "PatternModel":
        """The classifier, ready to predict."""
        from clew.patterns.trained.model import load_classifier

        return load_classifier(self.model, device)

    def __repr__(self) -> str:
        return f"ClassifierResult({self._summary()}; {self.path})"

    def _repr_html_(self) -> str:
        return f"<p>{self._summary()}</p>{super()._repr_html_()}"

    def _summary(self) -> str:
        low, high = map(tenth_percent, self.interval)
        return (
            f"test accuracy {tenth_percent(self.accuracy)} [{low}, {high}] on "
            f"{counted(self.raw['test_photos'], 'photo')} of "
            f"{counted(len(self.classes), 'class', 'classes')}"
        )
