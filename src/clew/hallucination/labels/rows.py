"""The rows of a scores file and how they are written: whole or not at all, never over others."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from clew.errors import InputError
from clew.hallucination.labels.answers import Answer
from clew.hallucination.labels.table import OWN_COLUMNS
from clew.storage.writing import replace_file


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledAnswer:
    """An answer with its score, from 0 (wrong) to 1 (right)."""

    question_id: str
    global_example_id: int
    score: float
    method: str
    answer: str
    accepted_answer: str
    question: str
    category: str | None

    @classmethod
    def of(cls, answer: Answer, score: float, method: str, accepted: str) -> "LabelledAnswer":
        return cls(
            question_id=answer.question_id,
            global_example_id=answer.global_example_id,
            score=round(score, 6),
            method=method,
            answer=answer.text,
            accepted_answer=accepted,
            question=answer.question,
            category=answer.category,
        )


def write_rows(path: Path, rows: Sequence[LabelledAnswer], *, overwrite: bool) -> bool:
    """Write the file; False where it holds these very rows already.

    Raises InputError where it holds others and `overwrite` is not given.
    """
    content = _render(rows)
    if path.exists():
        before = path.read_bytes()
        if before == content:
            return False
        if not overwrite:
            raise InputError(_explain_difference(path, before, content))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    return True


def _render(rows: Sequence[LabelledAnswer]) -> bytes:
    text = io.StringIO()
    plain = csv.writer(text, lineterminator="\n")
    # The csv module leaves a lone carriage return unquoted, and then cannot read it back.
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    plain.writerow(OWN_COLUMNS)
    for row in rows:
        values = [getattr(row, name) for name in OWN_COLUMNS]
        has_return = any("\r" in value for value in values if isinstance(value, str))
        (quoted if has_return else plain).writerow(values)
    return text.getvalue().encode()


def _explain_difference(path: Path, before: bytes, content: bytes) -> str:
    pairs = zip_longest(before.splitlines(), content.splitlines())
    line = next((number for number, (old, new) in enumerate(pairs, 1) if old != new), 1)
    return (
        f'"{path}" is there already and holds other scores than would be written now '
        f"(from line {line:,} on): give another `out`, or replace it with `overwrite=True`."
    )
