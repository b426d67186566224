"""The test answers of a comparison: their texts, labels, and what every method gave them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import StoreError

_TEXTS = ("category", "question", "answer", "right_answer")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Rows are answers of the test split. Label 1 = made up; scores are probabilities of that."""

    labels: np.ndarray
    scores: dict[str, np.ndarray]
    texts: dict[str, list[str | None]]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def has_both_classes(self) -> bool:
        return 0 < int(self.labels.sum()) < len(self.labels)

    def text(self, name: str, row: int) -> str | None:
        return self.texts[name][row]


def read_answers(path: Path, methods: Sequence[str], *, again: str) -> Answers:
    """A method without a column, or with a score that is no number, is left out of `scores`.

    `again` says what to do about a file that is missing or damaged (StoreError)."""
    table = _read_table(path, again)
    missing = {"split", "label"} - set(table.column_names)
    if missing:
        raise StoreError(f'"{path}" has no column {", ".join(sorted(missing))}. {again}.')
    test = table.filter(pc.equal(table["split"], "test"))
    columns = {
        name: _numbers(test.column(f"score_{name}"))
        for name in methods
        if f"score_{name}" in test.schema.names
    }
    return Answers(
        labels=_numbers(test["label"]).astype(np.int8),
        scores={name: values for name, values in columns.items() if np.isfinite(values).all()},
        texts={name: _texts(test, name) for name in _TEXTS},
    )


def _read_table(path: Path, again: str) -> pa.Table:
    try:
        with pa.OSFile(str(path)) as file:
            return pa.ipc.open_file(file).read_all()
    except FileNotFoundError:
        raise StoreError(f'There is no "{path.name}" in "{path.parent}". {again}.') from None
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(f'"{path}" cannot be read ({error}). {again}.') from None


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return column.to_numpy().astype(np.float64)


def _texts(table: pa.Table, name: str) -> list[str | None]:
    if name not in table.schema.names:
        return [None] * len(table)
    values = table.column(name).to_pylist()
    return [None if value is None else _as_text(value) for value in values]


def _as_text(value: object) -> str:
    """Several right answers stand in one line."""
    return " / ".join(map(str, value)) if isinstance(value, list) else str(value)
