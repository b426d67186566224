"""Answers that exist already: records with a question, the answer that a model gave, and possibly
whether it is correct."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clew.base.errors import InputError
from clew.hallucination.questions.records import (
    CORRECT_COLUMNS,
    HALLUCINATED_COLUMNS,
    QUESTION_COLUMNS,
    RESPONSE_COLUMNS,
    Row,
    UnusableRecordError,
    check_length,
    pick,
    plain_fields,
    plain_name,
    read_question,
)

_YES = frozenset(("1", "true", "yes", "y", "hallucinated", "hallucination", "hallucinatory"))
_NO = frozenset(("0", "false", "no", "n", "correct", "factual", "faithful"))
_CORRECT_SCORE = 0.5


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion:
    """A question with the answer to read. `accepted` are the accepted answers, `hallucinated` the
    label, None if there is none, `spans` (start, end, label) of parts of the answer, in characters,
    labeled 1 (hallucinated), 0 or -1 (unsure), None if it is labeled as a whole only. `group` names
    what must not be split over training and test, such as a document or a conversation. `problem`
    says why the record cannot be used; it then has no other text than the answer."""

    id: str
    question: str = ""
    answer: str = ""
    context: str | None = None
    accepted: tuple[str, ...] = ()
    hallucinated: bool | None = None
    spans: tuple[tuple[int, int, int], ...] | None = None
    group: str | None = None
    category: str | None = None
    problem: str | None = None


def read_answered(row: Row, stem: str) -> AnsweredQuestion:
    """The answered question of a row; records without an id are named after `stem`."""
    name = f"{stem}_{row.number}"
    try:
        fields = plain_fields(row.read_fields())
    except UnusableRecordError as reason:
        return AnsweredQuestion(id=name, problem=f"{row.where}: {reason}")
    try:
        return _read_fields(fields, name)
    except UnusableRecordError as reason:
        return AnsweredQuestion(
            id=name, answer=_find_answer(fields), problem=f"{row.where}: {reason}"
        )


def _find_answer(fields: Mapping[str, Any]) -> str:
    """The answer of a record that cannot be used, if it is a text."""
    try:
        return next((_answer_text(fields[name]) for name in pick(fields, RESPONSE_COLUMNS)), "")
    except UnusableRecordError:
        return ""


def refuse_unanswered(name: str, row: Row) -> None:
    """Raises InputError if the first record has no named fields, or none for the question or for
    the answer."""
    if row.problem is not None:
        return
    if not isinstance(row.record, Mapping):
        raise InputError(
            f"{name}: {row.where} is a {type(row.record).__name__}: give records with the fields "
            "question and answer."
        )
    found = ", ".join(str(column)[:40] for column in list(row.record)[:20]) or "none"
    fields = plain_fields(row.record)
    if not pick(fields, RESPONSE_COLUMNS):
        raise InputError(
            f"{name} has no column with answers to score (found: {found}): name it answer or "
            "response."
        )
    if not pick(fields, QUESTION_COLUMNS):
        raise InputError(
            f"{name} has no column with questions (found: {found}): name it question or prompt."
        )


def _read_fields(fields: Mapping[str, Any], name: str) -> AnsweredQuestion:
    column = next(iter(pick(fields, RESPONSE_COLUMNS)), None)
    rest = {key: value for key, value in fields.items() if key != column}
    question = read_question(rest, name)
    return AnsweredQuestion(
        id=question.id,
        question=question.question,
        answer="" if column is None else _answer_text(fields[column]),
        context=question.context,
        accepted=question.answers,
        hallucinated=_read_label(fields),
        category=question.category,
    )


def _answer_text(value: object) -> str:
    """An empty answer is scored as such: it is unavailable."""
    if value is None or (isinstance(value, float) and value != value):  # NaN in a table
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise UnusableRecordError(f"its answer is a {type(value).__name__}, not text")
    check_length("answer", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UnusableRecordError(
            "its answer contains an invalid character (a lone surrogate)"
        ) from None
    return value.strip()


def _read_label(fields: Mapping[str, Any]) -> bool | None:
    for column in pick(fields, HALLUCINATED_COLUMNS):
        if (label := _as_bool(fields[column])) is not None:
            return label
    for column in pick(fields, CORRECT_COLUMNS):
        if column == plain_name("score") and (score := _as_number(fields[column])) is not None:
            return score < _CORRECT_SCORE
        if (correct := _as_bool(fields[column])) is not None:
            return not correct
    return None


def _as_bool(value: object) -> bool | None:
    text = str(value).strip().casefold().removesuffix(".0")
    return True if text in _YES else False if text in _NO else None


def _as_number(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0 <= number <= 1 else None
