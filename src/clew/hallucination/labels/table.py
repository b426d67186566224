"""A scores file as rows of text: read with line numbers for errors, written atomically, and never
overwritten without permission."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from clew.base.errors import Call, InputError
from clew.base.texts import from_csv
from clew.hallucination.labels.answers import REFUSED, UNLABELED, Label, LabeledAnswer
from clew.storage.reading import open_regular
from clew.storage.text_files import CsvRecords, TooLongError, csv_text, open_text
from clew.storage.writing import replace_file

if TYPE_CHECKING:
    from clew.hallucination.labels.spans import Span

ID_COLUMN = "question_id"
EXAMPLE_COLUMN = "global_example_id"
CORRECTION_COLUMN = "correction"
# The columns that `clew label` wrote before, and those that it writes. In a file with these,
# "answer" is the scored text.
OLD_COLUMNS = (ID_COLUMN, EXAMPLE_COLUMN, "score", "method", "answer", "accepted_answer")
OWN_COLUMNS = (
    *(ID_COLUMN, EXAMPLE_COLUMN, "score", "method", "reason", CORRECTION_COLUMN, "category"),
    *("question", "answer", "accepted_answer", "accepted_answers"),
)
# What a person may write into the column for corrections.
CORRECTIONS: dict[str, Label] = {
    **{"correct": "correct", "1": "correct", "1.0": "correct"},
    **{"hallucinated": "hallucinated", "0": "hallucinated", "0.0": "hallucinated"},
    **{"refused": "refused", "excluded": "excluded", "exclude": "excluded"},
}
# Between the accepted answers of a question.
BETWEEN = " | "
# The columns of the file of spans beside it.
SPAN_COLUMNS = (
    *(ID_COLUMN, EXAMPLE_COLUMN, "start", "end", "label", "part", "text", "accepted_answer"),
)
_SCORE_COLUMNS = ("score", "hallucination_score")
_LOOK_AT_ROWS = 100


def label_into(out: Path | str) -> Call:
    """The call that creates a scores file."""
    return Call("clew.label", ("STORE",), {"out": out})


class LabelTable:
    """A CSV file about answers: the parsed header, and the rows, which are read lazily. `needs`
    says what its first line must name."""

    needs = f"{ID_COLUMN} and a score"

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "is not a file"
            what = what if path.exists() else "does not exist"
            raise InputError(
                f'scores file "{path}" {what}: create one with ', label_into(path), "."
            )
        self.delimiter = ","
        self.columns = self._read_header()
        self.id_place = self.place(ID_COLUMN)
        has_examples = EXAMPLE_COLUMN in self.columns
        self.example_place = self.place(EXAMPLE_COLUMN) if has_examples else None

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """(line number, values) of every non-empty row."""
        with self._reading() as reader:
            next(reader)
            while True:
                line = reader.line + 1
                row = next(reader, None)
                if row is None:
                    return
                if not row:
                    continue
                row = [from_csv(cell) for cell in row]
                if len(row) != len(self.columns):
                    mark = "a comma" if self.delimiter == "," else f'"{self.delimiter}"'
                    raise InputError(
                        f"{self.path}, line {line}: {len(row)} values for {len(self.columns)} "
                        f"columns: put values that contain {mark} in double quotes."
                    )
                yield line, row

    @contextmanager
    def _reading(self) -> Iterator[CsvRecords]:
        with open_text(self.path) as file:
            reader = None
            try:
                reader = CsvRecords(file, None)
                self.delimiter = reader.delimiter
                yield reader
            except (csv.Error, TooLongError) as error:
                raise InputError(
                    f"{self.path}, line {reader.line if reader else 1}: {error}. A double quote is "
                    'not closed, or is inside a value, where it must be doubled ("").'
                ) from None
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{self.path} is not UTF-8 ({error.reason}, about line "
                    f'{reader.line + 1 if reader else 1}): save it as "CSV UTF-8".'
                ) from None

    def _read_header(self) -> list[str]:
        with self._reading() as reader:
            header = next(reader, None)
        if not header:
            raise InputError(f"{self.path} is empty: its first line must name the columns.")
        return [_plain_name(name) for name in header]

    def place(self, column: str) -> int:
        if self.columns.count(column) != 1:
            problem = "no column" if column not in self.columns else "more than one column"
            raise InputError(
                f'{self.path} has {problem} "{column}" (found: {", ".join(self.columns[:20])}): '
                f"its first line must name {self.needs}."
            )
        return self.columns.index(column)

    def parse_key(self, line: int, row: Sequence[str]) -> tuple[str, int | None]:
        """The question's id, and the example's if the file has one."""
        name, place = row[self.id_place].strip(), self.example_place
        if not name:
            raise InputError(
                f"{self.path}, line {line}: {ID_COLUMN} is empty: fill it in or delete the line."
            )
        fix = "correct it, or remove the whole column"
        return name, None if place is None else self.parse_integer(line, row, place, fix)

    def parse_integer(self, line: int, row: Sequence[str], place: int, fix: str) -> int:
        try:
            return int(row[place])
        except ValueError:
            raise InputError(
                f'{self.path}, line {line}: {self.columns[place]} "{row[place]:.40}" is not an '
                f"integer: {fix}."
            ) from None


class ScoresTable(LabelTable):
    """A scores file, with the column that has the scores."""

    def __init__(self, path: Path, score_column: str | None) -> None:
        super().__init__(path)
        self.is_own = set(OWN_COLUMNS) <= set(self.columns)
        has_answers = self.is_own or tuple(self.columns) == OLD_COLUMNS
        self.answer_place = self.place("answer") if has_answers else None
        self.reason_place = self.place("reason") if self.is_own else None
        self.correction_place = self.place(CORRECTION_COLUMN) if self.is_own else None
        self.score_column = self._choose_score(score_column)
        self.score_place = self.place(self.score_column)

    def _choose_score(self, wanted: str | None) -> str:
        if wanted is not None:
            return _plain_name(wanted)
        for name in _SCORE_COLUMNS:
            if name in self.columns:
                return name
        numeric = self._numeric_columns()
        if len(numeric) == 1:
            return numeric[0]
        found = ", ".join(numeric or self.columns[:20])
        many = f"several candidates ({found})" if numeric else f"no other numeric column ({found})"
        raise InputError(
            f'{self.path} has no column "score" and {many}: rename the one with the scores to '
            '"score".'
        )

    def _numeric_columns(self) -> list[str]:
        sample = [row for _, row in islice(self.rows(), _LOOK_AT_ROWS)]
        return [
            name
            for place, name in enumerate(self.columns)
            if name not in (ID_COLUMN, EXAMPLE_COLUMN)
            and sample
            and all(_is_number(self.plain_number(row[place])) for row in sample)
        ]

    def parse_label(self, line: int, row: Sequence[str]) -> Label | float:
        """The score, or the class that a person or a refusal gives the answer."""
        corrected = self.parse_correction(line, row)
        if corrected is not None:
            return corrected
        reason = "" if self.reason_place is None else row[self.reason_place].strip()
        if reason in (REFUSED, UNLABELED):
            return "refused" if reason == REFUSED else "excluded"
        return self.parse_score(line, row)

    def parse_correction(self, line: int, row: Sequence[str]) -> Label | None:
        text = row[self.correction_place].strip() if self.correction_place is not None else ""
        if not text:
            return None
        if text.casefold() not in CORRECTIONS:
            raise InputError(
                f'{self.path}, line {line}: the correction "{text:.40}" is not known: give one of '
                "correct, hallucinated, refused and excluded, or leave it empty."
            )
        return CORRECTIONS[text.casefold()]

    def plain_number(self, text: str) -> str:
        """A number with a decimal point; spreadsheets that write semicolons may write a comma."""
        return text if self.delimiter == "," else text.replace(",", ".")

    def parse_score(self, line: int, row: Sequence[str]) -> float:
        text = self.plain_number(row[self.score_place].strip())
        value = float(text) if _is_number(text) else math.nan
        if 0 <= value <= 1:
            return value
        where = f'{self.path}, line {line}: {self.score_column} "{text:.40}"'
        if not text:
            raise InputError(f"{where} is empty: fill it in or delete the line.")
        if math.isnan(value):
            raise InputError(
                f"{where} is not a number: give a number from 0 to 1 with a decimal point, such as "
                "0.25."
            )
        hint = ": if these are percentages, divide them by 100" if 1 < value <= 100 else ""
        raise InputError(f"{where} is not between 0 and 1{hint or ': correct it'}.")


def _plain_name(column: str) -> str:
    return "_".join(column.split()).lower()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_corrections(path: Path) -> dict[tuple[str, int | None], tuple[str, Label]]:
    """(the answer, the correction) of every row that a person corrected in a file of `clew label`;
    empty if it is not one."""
    if not path.is_file():
        return {}
    table = LabelTable(path)
    if not set(OWN_COLUMNS) <= set(table.columns):
        return {}
    table = ScoresTable(path, None)
    found = {}
    for line, row in table.rows():
        label = table.parse_correction(line, row)
        if label is not None:
            assert table.answer_place is not None
            found[table.parse_key(line, row)] = row[table.answer_place], label
    return found


def spans_beside(scores: Path) -> Path:
    """The file with the span labels of a scores file."""
    return scores.with_name(f"{scores.stem}.spans.csv")


def write_table(
    path: Path, rows: "Sequence[LabeledAnswer | Span]", columns: Sequence[str], *, overwrite: bool
) -> bool:
    """Write the file; returns False if it already has exactly these rows. Raises InputError if it
    has others and `overwrite` is not given."""
    lines = ([_cell(getattr(row, name)) for name in columns] for row in rows)
    content = csv_text([columns, *lines]).encode()
    if path.exists():
        with open_regular(path) as file:
            before = file.read()
        with open_text(path) as text:
            old = _read_cells(text)
        new = _read_cells(io.StringIO(content.decode(), newline=""))
        if before == content or old == new:
            return False
        if not overwrite and not _is_older_form(old, new):
            raise InputError(_explain_difference(path, before, content))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    return True


def _cell(value: Any) -> Any:
    if isinstance(value, tuple):
        return BETWEEN.join(value)
    return "" if value is None else value


def _read_cells(text: TextIO) -> list[list[str]] | None:
    """What a file holds, however an earlier version or a spreadsheet wrote it; None if it is not
    CSV."""
    try:
        return [[from_csv(cell) for cell in cells] for cells in CsvRecords(text, None)]
    except (csv.Error, TooLongError, UnicodeError):
        return None


def _is_older_form(old: list[list[str]] | None, new: list[list[str]] | None) -> bool:
    """Whether a file has the same scores in the columns of an earlier version."""
    if not old or not new or tuple(old[0]) != OLD_COLUMNS:
        return False
    places = [new[0].index(name) for name in OLD_COLUMNS]
    return old == [[row[place] for place in places] for row in new]


def _explain_difference(path: Path, before: bytes, content: bytes) -> str:
    pairs = zip_longest(before.splitlines(), content.splitlines())
    line = next((number for number, (old, new) in enumerate(pairs, 1) if old != new), 1)
    return (
        f'"{path}" already exists and has different scores '
        f"(from line {line:,} on): choose another `out`, or replace it with `overwrite=True`."
    )
