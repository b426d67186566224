"""What a capture is given: questions to answer, or answers to read. These are kept on disk: a log
may have any number of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clew.base.errors import InputError
from clew.base.progress import Note, Reporter, ignore_event
from clew.hallucination.questions import (
    collect_questions,
    describe_answers,
    load_questions,
    open_records,
)
from clew.hallucination.questions.answered import OwnIds, read_answered
from clew.hallucination.questions.built_in import built_in_names
from clew.hallucination.questions.columns import RECOGNIZED, RowFormat
from clew.hallucination.questions.messages import UnusableRecordError
from clew.hallucination.questions.records import (
    Collector,
    Question,
    QuestionSet,
    Row,
    RowSource,
)
from clew.storage.disk_list import DiskList

# Whether the answers of a capture are generated, or those of the file are read.
Answers = Literal["generate", "given"]


@dataclass(frozen=True, kw_only=True)
class GivenAnswer(Question):
    """A question with the answer to read, and what its file says of that: see AnsweredQuestion."""

    answer: str
    hallucinated: bool | None = None
    spans: tuple[tuple[int, int, int], ...] | None = None
    group: str | None = None


def load_rows(
    questions: Any,
    num_samples: int | None = None,
    answers: Answers | None = None,
    format: RowFormat = RECOGNIZED,
    report: Reporter = ignore_event,
) -> QuestionSet:
    """The questions of a file, a dataset or a program; with `answers="given"`, they are
    GivenAnswer. What the columns are taken for is reported. Raises InputError, without a choice
    also if there are both answers and labels."""
    if answers == "given":
        return _load_given(_open(questions, format), num_samples, report)
    is_clear = answers is not None
    if isinstance(questions, str | Path):
        return load_questions(str(questions), num_samples, format, report, is_clear=is_clear)
    questions = list(questions) if isinstance(questions, Iterator) else questions
    return collect_questions(questions, num_samples, format, report, is_clear=is_clear)


def _open(questions: Any, format: RowFormat) -> RowSource:
    if isinstance(questions, str | Path) and str(questions) in built_in_names():
        raise InputError(
            "a built-in set has no answers to read: give a file that has some.",
            setting="questions",
            value=questions,
        )
    return open_records(questions, format)


def _load_given(source: RowSource, num_samples: int | None, report: Reporter) -> QuestionSet:
    use = describe_answers(source)
    if use.columns:
        report(Note(use.text))
    collector = _AnswerCollector(source, num_samples)
    for row in source.rows:
        collector.add_row(row)
        if collector.full and not source.read_whole:
            break
    if repeated := collector.own_ids.text:
        report(Note(repeated))
    return collector.finish(source.name, source.sha256)


class _AnswerCollector(Collector):
    """Turns rows into answers to read."""

    def __init__(self, source: RowSource, limit: int | None) -> None:
        super().__init__(source.stem, limit, format=source.format)
        self._questions = DiskList()
        self.own_ids = OwnIds()

    def add_row(self, row: Row) -> None:
        try:
            found = self._read(row)
            self.add(found)
        except UnusableRecordError as reason:
            self._skip(row, str(reason))
        else:
            about = [found.answer, found.hallucinated, found.spans, found.group]
            self._digest.update(json.dumps(about).encode())

    def _read(self, row: Row) -> GivenAnswer:
        found = self.own_ids.give(read_answered(row, self._stem, self._format))
        if found.problem is not None:
            raise UnusableRecordError(found.problem.removeprefix(f"{row.where}: "))
        if not found.answer:
            raise UnusableRecordError("its answer is empty, so there is nothing to read")
        return GivenAnswer(
            id=found.id,
            question=found.question,
            answers=found.accepted,
            category=found.category,
            context=found.context,
            answer=found.answer,
            hallucinated=found.hallucinated,
            spans=found.spans,
            group=found.group,
        )
