"""A person looks at answers whose labels are doubtful, and corrects them, on a page that only this
machine can reach; the scores file has the result."""

import logging
import os
import threading
import webbrowser
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import filelock

from clew.base.errors import Call, InputError, StoreLockedError
from clew.hallucination.labels.answers import REFUSED, UNLABELED, Label, LabeledAnswer
from clew.hallucination.labels.label import Doubt, find_doubt
from clew.hallucination.labels.table import BETWEEN, ScoresTable, label_into
from clew.pages.review import ReviewApp
from clew.pages.server import LocalServer, open_server
from clew.storage.lock import lock_file
from clew.storage.text_files import csv_text
from clew.storage.writing import replace_file

if TYPE_CHECKING:
    from fastapi import FastAPI


__all__ = ["LabelReview", "open_review", "run_review"]


Decided = Literal["correct", "hallucinated", "refused", "excluded", "skipped"]
_CLASSES = ("correct", "hallucinated", "refused", "excluded", "skipped")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReviewedAnswer:
    """An answer to look at: `line` is its row in the file, `label` its class so far."""

    line: int
    row: LabeledAnswer
    label: Label
    doubt: Doubt


class _Decision(NamedTuple):
    action: Decided
    before: str  # what the column held


# The cells of a row that are texts of the answer.
_AS_WRITTEN = ("method", "answer", "accepted_answer", "question", "reason")


class ScoresFile:
    """A scores file whose corrections change one by one. The file is replaced as a whole, so that
    it is complete at every moment. Raises InputError if `clew label` did not write it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        table = ScoresTable(path, None)
        if table.correction_place is None:
            raise InputError(
                f'"{path}" has no column for corrections: label the store again with ',
                label_into(path),
                ".",
            )
        self.table, self._place = table, table.correction_place
        numbered = list(table.rows())
        self._numbers = [number for number, _ in numbered]
        self.rows = [row for _, row in numbered]
        self._header = csv_text([table.columns])
        self._lines = [csv_text([row]) for row in self.rows]
        self._state = self._look()

    def correct(self, line: int, text: str) -> str:
        """Write a correction, "" for none; returns the one before. Raises InputError if something
        else has changed the file."""
        if self._look() != self._state:
            raise InputError(
                f'"{self.path}" was changed by something else. Nothing was saved: finish, and '
                "start the review again."
            )
        row = [*self.rows[line]]
        before, row[self._place] = row[self._place], text
        lines = [*self._lines[:line], csv_text([row]), *self._lines[line + 1 :]]
        replace_file(self.path, "".join([self._header, *lines]).encode())
        self._state, self._lines, self.rows[line] = self._look(), lines, row
        return before

    def _look(self) -> tuple[int, int, int]:
        state = os.stat(self.path)
        return state.st_ino, state.st_size, state.st_mtime_ns

    def read(self, line: int) -> LabeledAnswer:
        """A row of the file. Raises InputError naming its line if it was edited wrongly."""
        row, number, table = self.rows[line], self._numbers[line], self.table
        cells = dict(zip(table.columns, row, strict=True))
        name, example = table.parse_key(number, row)
        is_without = cells["reason"].strip() in (REFUSED, UNLABELED)
        has_score = bool(cells["score"].strip()) or not is_without
        return LabeledAnswer(
            question_id=name,
            global_example_id=int(example or 0),
            score=table.parse_score(number, row) if has_score else None,
            category=cells["category"] or None,
            **{name: cells[name] for name in _AS_WRITTEN},
            accepted_answers=tuple(cells["accepted_answers"].split(BETWEEN)),
            correction=table.parse_correction(number, row),
        )


class LabelReview:
    """The answers that nobody has corrected yet, the most doubtful first; with `only`, those with
    these numbers in their order. Threads that share it hold `lock`."""

    def __init__(
        self, file: ScoresFile, score_threshold: float, only: Sequence[int] | None = None
    ) -> None:
        self.file = file
        self.lock = threading.RLock()
        self.queue = _list_answers(file, score_threshold)
        if only is not None:
            found = {one.row.global_example_id: one for one in self.queue}
            self.queue = [found[number] for number in only if number in found]
        self.doubtful = sum(one.doubt.is_large for one in self.queue)
        self._decisions: list[_Decision] = []

    @property
    def place(self) -> int:
        """The number of decisions, which is the index of the open answer."""
        return len(self._decisions)

    @property
    def current(self) -> ReviewedAnswer | None:
        return self.queue[self.place] if self.place < len(self.queue) else None

    def counts(self) -> Counter[str]:
        """How many this review put into each class, excluded and skipped."""
        return Counter(decision.action for decision in self._decisions)

    def decide(self, label: Label) -> str:
        """Label the open answer; returns a sentence about it."""
        answer = self._open_answer()
        before = self.file.correct(answer.line, label)
        self._decisions.append(_Decision(label, before))
        kept = "confirmed" if label == answer.label else f"was {answer.label}"
        return f"Saved: {label} ({kept})"

    def keep(self) -> str:
        """Confirm the label that the open answer has."""
        return self.decide(self._open_answer().label)

    def skip(self) -> str:
        self._open_answer()
        self._decisions.append(_Decision("skipped", ""))
        return "Skipped"

    def undo(self) -> str:
        """Take the last decision back. Raises InputError when there is none."""
        if not self._decisions:
            raise InputError("there is nothing to undo: no answer has been reviewed yet.")
        last = self._decisions[-1]
        if last.action != "skipped":
            self.file.correct(self.queue[self.place - 1].line, last.before)
        self._decisions.pop()
        return "Undone"

    def _open_answer(self) -> ReviewedAnswer:
        if self.current is None:
            raise InputError("all answers have been reviewed.")
        return self.current


def _list_answers(file: ScoresFile, threshold: float) -> list[ReviewedAnswer]:
    found = []
    for line in range(len(file.rows)):
        row = file.read(line)
        if row.correction is None:
            label, doubt = row.label(threshold), find_doubt(row, threshold)
            found.append(ReviewedAnswer(line=line, row=row, label=label, doubt=doubt))
    return sorted(found, key=lambda answer: (-answer.doubt.value, answer.line))


@contextmanager
def open_review(
    path: Path, score_threshold: float = 0.5, only: Sequence[int] | None = None
) -> Iterator[LabelReview]:
    """Review a scores file, or `only` the answers with these numbers. Raises InputError if `clew
    label` did not write it, StoreLockedError if another review of it is running."""
    file = ScoresFile(path)
    lock = path.with_name(f".{path.name}.review.lock")
    try:
        with lock_file(lock, timeout_seconds=0):
            yield LabelReview(file, score_threshold, only)
    except filelock.Timeout:
        raise StoreLockedError(
            f'another review of "{path}" is running: finish that one first.'
        ) from None


@dataclass(frozen=True, kw_only=True)
class Hints:
    """What the page suggests: what to do `next`, and how to review what is left `again`."""

    next: str
    again: str


@dataclass(frozen=True, kw_only=True)
class PageDecision:
    """A person's decision; `question` is the number of the answer that was on the screen."""

    question: int
    action: Literal["correct", "hallucinated", "refused", "excluded", "keep", "skip", "undo"]


@contextmanager
def open_page(
    review: LabelReview, port: int = 0, hints: Hints | None = None
) -> Iterator[LocalServer]:
    """A server for the page, which stops when a person has finished there; port 0 is any free port.

    Raises InputError when the port is taken, or the packages of the extra "web" are missing.
    """
    shown = hints or _python_hints(review)
    with open_server(lambda stop: build_app(review, shown, stop), port) as server:
        yield server


def _python_hints(review: LabelReview) -> Hints:
    path = str(review.file.path)
    return Hints(
        next=str(Call("clew.preprocess", ("STORE",), {"scores_file": path})),
        again=str(Call("clew.label", ("STORE",), {"out": path, "review": True})),
    )


def build_app(review: LabelReview, hints: Hints, on_done: Callable[[], None]) -> "FastAPI":
    """The application; `on_done` is called at the end."""
    from fastapi import Response

    built = ReviewApp(review.lock, lambda: describe_state(review, hints), on_done)

    @built.app.post("/answer")
    def answer(given: PageDecision) -> Response:
        return built.decide(
            lambda: given.question == review.place, lambda: _carry_out(review, given)
        )

    return built.serve_page("clew.hallucination.labels.review")


def _carry_out(review: LabelReview, given: PageDecision) -> str:
    if given.action == "undo":
        return review.undo()
    if given.action == "skip":
        return review.skip()
    return review.keep() if given.action == "keep" else review.decide(given.action)


def describe_state(review: LabelReview, hints: Hints) -> dict[str, Any]:
    """Everything that the page shows."""
    counts, answer = review.counts(), review.current
    return {
        "place": review.place,
        "total": len(review.queue),
        "doubtful": review.doubtful,
        "answer": answer and _describe(answer),
        "counts": {name: counts[name] for name in _CLASSES},
        "can_undo": review.place > 0,
        "file": str(review.file.path),
        "command": hints.next,
        "again": hints.again,
    }


def _describe(answer: ReviewedAnswer) -> dict[str, Any]:
    row = answer.row
    return {
        "id": row.question_id,
        "category": row.category or "",
        "question": row.question,
        "answer": row.answer,
        "accepted": [text for text in row.accepted_answers if text],
        "label": answer.label,
        "reason": row.reason,
        "method": row.method,
        "doubt": answer.doubt.about,
    }


def run_review(
    path: Path,
    *,
    score_threshold: float = 0.5,
    only: Sequence[int] | None = None,
    port: int = 0,
    browser: bool = True,
) -> dict[str, int]:
    """Let a person review the labels of a scores file, in the browser. Returns how many answers
    were put into each class, excluded and skipped. Raises what `open_review` does."""
    with open_review(path, score_threshold, only) as review, open_page(review, port) as server:
        logger.info("review page: %s", server.address)
        if browser:
            webbrowser.open(server.address)
        server.run()
        return dict(review.counts())
