"""identified.csv: a row a photo, for a spreadsheet."""

import csv
import io
from typing import IO

from clew.patterns.identification.files import TABLE_HEAD
from clew.patterns.identification.results import Identified

# Spreadsheets take what begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class TableWriter:
    """Writes rows into an open file; begins with the mark by which spreadsheets know UTF-8."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        file.write(f"\N{ZERO WIDTH NO-BREAK SPACE}{TABLE_HEAD}\r\n".encode())

    def add(self, photo: Identified) -> None:
        best = [*photo.best, ("", None), ("", None)]
        (label, chance), (second, second_chance) = best[:2]
        fault = photo.fault.reason if photo.fault else ""
        is_doubtful = "" if photo.fault else "yes" if photo.doubtful else "no"
        row = (
            photo.name,
            label,
            _number(chance),
            is_doubtful,
            second,
            _number(second_chance),
            fault,
        )
        line = io.StringIO()
        csv.writer(line).writerow([_as_text(value) for value in row])
        self._file.write(line.getvalue().encode("utf-8", "replace"))


def _number(probability: float | None) -> str:
    return "" if probability is None else f"{probability:.4f}"


def _as_text(value: str) -> str:
    return f"'{value}" if value.startswith(_FORMULA) else value
