"""Read a file of span labels, written by `clew label` or by other means, and label tokens by it."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int8

from clew.base.errors import InputError
from clew.hallucination.labels.table import ID_COLUMN, LabelTable
from clew.storage.hashing import hash_file

# The labels of tokens.
OUTSIDE, UNSURE, CORRECT, HALLUCINATED = -2, -1, 0, 1
_LABELS = {
    **{"correct": CORRECT, "0": CORRECT},
    **{"hallucinated": HALLUCINATED, "1": HALLUCINATED},
    **{"unsure": UNSURE, "-1": UNSURE},
}


@dataclass(frozen=True, kw_only=True)
class SpanLabels:
    """(start, end, label) of the spans of each answer, in characters, by question and
    `global_example_id`; by question alone (None) if the file does not have the latter."""

    path: Path
    spans: dict[tuple[str, int | None], list[tuple[int, int, int]]]
    sha256: str

    @property
    def counts(self) -> Counter[int]:
        """The number of spans with each label."""
        return Counter(label for spans in self.spans.values() for _, _, label in spans)

    def label_tokens(
        self, question_id: str, number: int, ends: Sequence[int]
    ) -> Int8[np.ndarray, " tokens"]:
        """The label of each token, from where the tokens end in the answer's text. A token belongs
        to a span if they share a character, to a hallucinated one rather than to another; `OUTSIDE`
        if to none."""
        labels = np.full(len(ends), OUTSIDE, np.int8)
        stops = np.asarray(ends, np.int64)
        starts = np.concatenate([[0], stops])[:-1]
        for start, end, label in self._of(question_id, number):
            inside = (starts < end) & (stops > start)
            labels[inside] = np.maximum(labels[inside], label)
        return labels

    def digest(self, question_ids: Sequence[str], numbers: Sequence[int]) -> str:
        """A hash of the spans of these answers, in any order."""
        answers = zip(question_ids, numbers, strict=True)
        found = sorted((number, self._of(name, number)) for name, number in answers)
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()

    def _of(self, question_id: str, number: int) -> list[tuple[int, int, int]]:
        name = question_id.strip()
        return self.spans.get((name, number)) or self.spans.get((name, None), [])


class _SpansTable(LabelTable):
    needs = f"{ID_COLUMN}, start, end and label"


def read_span_labels(path: Path) -> SpanLabels:
    """Read a CSV with `question_id`, `start`, `end` and `label` (correct, hallucinated or unsure;
    or 0, 1 and -1), and optionally `global_example_id`. Raises InputError naming the line."""
    table = _SpansTable(path)
    places = [table.place(name) for name in ("start", "end")]
    label_place = table.place("label")
    spans: dict[tuple[str, int | None], list[tuple[int, int, int]]] = {}
    for line, row in table.rows():
        number = None
        if table.example_place is not None:
            number = table.parse_example(line, row, table.example_place)
        start, end = (table.parse_integer(line, row, place, "correct it") for place in places)
        label = _LABELS.get(row[label_place].strip().lower())
        if label is None or not 0 <= start < end < 1 << 31:
            raise InputError(
                f'{path}, line {line}: the span from {start} to {end} is labeled "'
                f'{row[label_place]:.40}": give a start of at least 0, a larger end, and one of '
                "correct, hallucinated and unsure."
            )
        spans.setdefault((table.parse_id(line, row), number), []).append((start, end, label))
    return SpanLabels(path=path, spans=spans, sha256=hash_file(path))
