"""What a capture is given: questions to answer, or answers to read. These are kept on disk: a log
may have any number of them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clew.base.errors import InputError
from clew.hallucination.questions import collect_questions, list_records, load_questions, open_rows
from clew.hallucination.questions.answered import read_answered, refuse_unanswered
from clew.hallucination.questions.built_in import built_in_names
from clew.hallucination.questions.records import (
    CORRECT_COLUMNS,
    HALLUCINATED_COLUMNS,
    QUESTION_COLUMNS,
    RESPONSE_COLUMNS,
    Collector,
    Question,
    QuestionSet,
    Row,
    RowSource,
    UnusableRecordError,
    pick,
    plain_fields,
    plain_name,
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
    questions: Any, num_samples: int | None = None, answers: Answers | None = None
) -> QuestionSet:
    """The questions of a file, a dataset or a program; with `answers="given"`, they are
    GivenAnswer. Raises InputError, without a choice also if there are both answers and labels."""
    if answers == "given":
        return _load_given(_open(questions), num_samples)
    is_named = isinstance(questions, str | Path)
    questions = list(questions) if isinstance(questions, Iterator) else questions
    if answers is None and not (is_named and str(questions) in built_in_names()):
        source = _open(questions)
        refuse_unclear(source.name, next(iter(source.rows), None))
    if is_named:
        return load_questions(str(questions), num_samples)
    return collect_questions(questions, num_samples)


def _open(questions: Any) -> RowSource:
    if isinstance(questions, str | Path):
        if str(questions) in built_in_names():
            raise InputError(
                "a built-in set has no answers to read: give a file that has some.",
                setting="questions",
                value=questions,
            )
        return open_rows(str(questions))
    rows = enumerate(list_records(questions))
    numbered = (Row(number=n, where=f"answer {n + 1}", record=one) for n, one in rows)
    return RowSource(name="the list of answers", stem="answer", rows=numbered)


def _load_given(source: RowSource, num_samples: int | None) -> QuestionSet:
    collector = _AnswerCollector(source.stem, num_samples)
    for place, row in enumerate(source.rows):
        if not place:
            refuse_unanswered(source.name, row)
        collector.add_row(row)
        if collector.full and not source.read_whole:
            break
    return collector.finish(source.name, source.sha256)


class _AnswerCollector(Collector):
    """Turns rows into answers to read."""

    def __init__(self, stem: str, limit: int | None) -> None:
        super().__init__(stem, limit)
        self._questions = DiskList()

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
        found = read_answered(row, self._stem)
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


def refuse_unclear(name: str, row: Row | None) -> None:
    """Raises InputError if a record has an answer and a label: the answer may be one to read, or
    one that is accepted."""
    record = None if row is None else row.record
    fields = plain_fields(record) if isinstance(record, Mapping) else {}
    answer = pick(fields, RESPONSE_COLUMNS)
    label = pick(fields, (*HALLUCINATED_COLUMNS, *CORRECT_COLUMNS))
    if not answer or not label or not isinstance(record, Mapping):
        return
    spelled = {plain_name(column): column for column in record}
    asked = [spelled[column] for column in pick(fields, QUESTION_COLUMNS)[:1]]
    questions = "".join(f'"{column}" as the question, ' for column in asked)
    raise InputError(
        f'{name} has answers and labels: it is read with {questions}"{spelled[answer[0]]}" as the '
        f'answer and "{spelled[label[0]]}" as its label. Use `answers="given"` to read these '
        'answers, or `answers="generate"` to have the model answer, with those of the file as '
        "the accepted ones."
    )
