"""What a finished comparison leaves in its folder: results.json, table.csv, table.tex,
scores.arrow."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.engine.versions import read_versions
from clew.hallucination.comparison.rows import Labels, Measured
from clew.hallucination.comparison.stores import Store
from clew.hallucination.detectors.training.results import LIBRARY, RESULTS_FILE
from clew.storage.writing import replace_file

SCORES_FILE, CSV_FILE, LATEX_FILE, TRANSFER_FILE = (
    "scores.arrow",
    "table.csv",
    "table.tex",
    "transfer.csv",
)
_TEXTS = ("category", "question", "answer")
_SHOWN_ANSWERS = 3


def write_text(path: Path, text: str) -> None:
    replace_file(path, text.encode())


def write_results(folder: Path, content: Mapping[str, Any]) -> None:
    """What is no number becomes null: JSON has no NaN."""
    text = json.dumps(_finite(content), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(folder / RESULTS_FILE, f"{text}\n")


def write_scores(
    folder: Path, train: Store, test: Store, labels: Labels, measured: Sequence[Measured]
) -> None:
    """A row an answer: the validation split of `train`, then what is kept of the test split of
    `test`; a column a method (score_NAME) with its probability that the answer is made up."""
    rows = np.arange(len(labels.validation))
    parts = [
        _part(
            train,
            "validation",
            rows,
            {m.row["method"]: m.validation_probabilities for m in measured},
        ),
        _part(test, "test", labels.kept, {m.row["method"]: m.test_probabilities for m in measured}),
    ]
    table = pa.concat_tables(parts)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    replace_file(folder / SCORES_FILE, sink.getvalue().to_pybytes())


def describe_versions() -> dict[str, str]:
    return read_versions(LIBRARY, "scikit-learn", "scipy")


def _part(
    store: Store, split: str, rows: np.ndarray, probabilities: Mapping[str, np.ndarray]
) -> pa.Table:
    data = store.data
    texts = {name: _pick(_read_texts(store, name, split), rows) for name in _TEXTS}
    accepted = _read_texts(store, "accepted_answers", split)
    right = [None if some is None else _join(some) for some in accepted]
    columns = {
        "split": pa.array([split] * len(rows)),
        "global_example_id": pa.array(data.ids[split][rows].astype(np.int64)),
        "question_id": pa.array([str(one) for one in data.question_ids[split][rows]], pa.string()),
        **{name: pa.array(values, pa.string()) for name, values in texts.items()},
        "right_answer": pa.array(_pick(right, rows), pa.string()),
        "label": pa.array(data.labels[split][rows].astype(np.int8)),
    }
    # Float64: beyond a logit of 17 a float32 would make all scores equal.
    scores = {f"score_{name}": pa.array(values) for name, values in probabilities.items()}
    return pa.table({**columns, **scores})


def _read_texts(store: Store, name: str, split: str) -> list[Any]:
    if name not in store.data.fields:
        return [None] * len(store.data.labels[split])
    return list(store.data.read(name, split))


def _join(answers: Sequence[str | None]) -> str:
    return " / ".join([text for text in answers if text][:_SHOWN_ANSWERS])


def _pick(values: Sequence[Any], rows: np.ndarray) -> list[Any]:
    return [values[row] for row in rows]


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, np.generic):
        return _finite(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
