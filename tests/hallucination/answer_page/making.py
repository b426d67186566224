"""What the tests of the answer page share: scores that go with a store's states, and pictures."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.hallucination.answer_page import Picture, ShowConfig, show_answer
from clew.hallucination.traces import TraceBatchLoader

THRESHOLD = 0.6
# Number, split, label (1 = hallucinated), risk.
ANSWERS = ((3, "test", 1, 0.2), (4, "test", 0, 0.9), (5, "test", 1, 0.7), (6, "validation", 0, 0.1))


def write_scores(store: Path, out: Path) -> dict[int, bool]:
    """A scores file in which the last layer's states decide; returns who is hallucinated."""
    traces = list(TraceBatchLoader(store).iter_traces())
    states = np.stack([trace["last_hidden"][-1] for trace in traces]).astype(float)
    values = states @ np.random.default_rng(0).normal(size=states.shape[1])
    hallucinated = values > np.median(values)
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["question_id", "global_example_id", "score"])
        for trace, wrong in zip(traces, hallucinated, strict=True):
            row = trace["question_id"], trace["global_example_id"], 0.0 if wrong else 1.0
            writer.writerow(row)
    return {t["global_example_id"]: bool(w) for t, w in zip(traces, hallucinated, strict=True)}


def make_picture(store: Path, out: Path, answer: str = "3", **options: Any) -> Picture:
    return show_answer(ShowConfig(store=store, answer=answer, out=(out,), **options)).picture


def write_comparison(
    folder: Path,
    *,
    question: str = "q{}",
    answers: Sequence[tuple[int, str, int, float]] = ANSWERS,
) -> Path:
    """A finished comparison of a few answers of a store."""
    folder.mkdir()
    method = {"method": "lstm", "title": "LSTM", "threshold": THRESHOLD, "val_auroc": 0.9}
    (folder / "results.json").write_text(json.dumps({"methods": [method]}), encoding="utf-8")
    rows = [
        {
            "split": split,
            "global_example_id": number,
            "question_id": question.format(number),
            "label": label,
            "score_lstm": risk,
        }
        for number, split, label, risk in answers
    ]
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(folder / "scores.arrow", table.schema) as writer:
        writer.write_table(table)
    return folder
