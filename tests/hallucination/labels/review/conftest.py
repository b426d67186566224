"""A scores file with answers of every kind, and a review of it, served for real."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clew.hallucination.labels.label import label_store
from clew.hallucination.labels.review import LabelReview, open_page, open_review
from clew.pages.server import LocalServer
from tests.hallucination.labels.text_stores import trace_row, write_text_store

NASTY = '<img src=x onerror="alert(1)">'


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    """Scores of five answers; those from q1 on are doubtful: q1, then q3, then q2."""
    answers = ["Rome", "Rome and Oslo", "I don't know.", "New Rom", NASTY]
    rows = [trace_row(i, answer, ["Rome"]) for i, answer in enumerate(answers)]
    rows[3]["accepted_answers"] = ["New Rome"]
    rows[4]["question"] = NASTY
    label_store(write_text_store(tmp_path / "store", rows), tmp_path / "scores.csv")
    return tmp_path / "scores.csv"


@pytest.fixture
def review(scores: Path) -> Iterator[LabelReview]:
    with open_review(scores) as opened:
        yield opened


@dataclass(frozen=True)
class Served:
    server: LocalServer
    thread: threading.Thread

    @property
    def address(self) -> str:
        return self.server.address

    def stop(self) -> None:
        """Waits for the end."""
        self.server.stop()
        self.thread.join(timeout=60)
        assert not self.thread.is_alive()


@pytest.fixture
def served(review: LabelReview) -> Iterator[Served]:
    with open_page(review) as server:
        served = Served(server, threading.Thread(target=server.run))
        served.thread.start()
        yield served
        served.stop()
