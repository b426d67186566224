"""What the tests of the answer page share: scores that go with a store's states, and pictures."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from clew.hallucination.answer_page import Picture, ShowConfig, show_answer
from clew.hallucination.traces import TraceBatchLoader


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
