"""Finished comparisons for the page: the table of methods, and the pages of the report. Only files
that were found at the start can be read: clients name them, and the names are looked up."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.hallucination.comparison.report.comparison import Comparison, MethodResult, color_of
from clew.pages.numbers import as_dict
from clew.storage.reading import irregular_kind, read_bounded

REPORT_FILE = "report.html"
# The report, the answer pages that it links and its pictures.
_NAME = re.compile(r"report\.html|answers/answer-[0-9]+\.html|figures/[\w-]+\.png", re.ASCII)
_PATTERNS = (REPORT_FILE, "answers/*.html", "figures/*.png")
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class ShownComparison:
    """A comparison, with the files of its report by name."""

    comparison: Comparison
    files: dict[str, Path]

    def describe(self) -> dict[str, Any]:
        """What the page shows of it, with no path of the machine but the folder's name."""
        found = self.comparison
        model = as_dict(found.part("capture").get("model")).get("id")
        return {
            "name": found.folder.resolve().name,
            "model": model if isinstance(model, str) else None,
            "best": found.best.name if found.has_best else None,
            "chosen_on": found.chosen_on,
            "answers": len(found.test),
            "hallucinated": int(found.test.labels.sum()),
            "has_report": REPORT_FILE in self.files,
            "methods": [_describe_method(method) for method in found.methods],
        }

    def read(self, name: str) -> bytes | None:
        """A file of the report; None if there is none of that name."""
        path = self.files.get(name)
        if path is None or irregular_kind(path, follow_links=False) is not None:
            return None
        try:
            return read_bounded(path, _MOST_BYTES)
        except (OSError, ValueError):
            return None


def show_comparison(comparison: Comparison) -> ShownComparison:
    folder = comparison.folder
    found = [path for pattern in _PATTERNS for path in folder.glob(pattern)]
    named = {path.relative_to(folder).as_posix(): path for path in found}
    files = {name: path for name, path in named.items() if _NAME.fullmatch(name)}
    return ShownComparison(comparison=comparison, files=files)


def _describe_method(method: MethodResult) -> dict[str, Any]:
    return {
        "name": method.name,
        "title": method.title,
        "family": method.family,
        "color": color_of(method.family),
        "auroc": method.test_auroc,
        "interval": method.interval,
        "validation": method.val_auroc,
        "ece": method.figure("test_ece"),
        "f1": method.figure("test_f1"),
    }
