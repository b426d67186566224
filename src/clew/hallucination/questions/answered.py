"""Answers that exist already: records with a question, the answer that a model gave, and possibly
whether it is correct."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clew.base.errors import InputError
from clew.base.texts import counted, for_terminal, shortened
from clew.hallucination.questions.columns import (
    RECOGNIZED,
    ColumnUse,
    Fields,
    LabelError,
    RowFormat,
    explain_labels,
    label_text,
    list_columns,
)
from clew.hallucination.questions.messages import UnusableRecordError, read_conversation
from clew.hallucination.questions.records import (
    Row,
    RowSource,
    check_length,
    question_text,
    read_id,
    read_question,
    record_id,
)
from clew.storage.reading import parse_json

# Of parts of answers. Labels that name a kind of hallucination have a key of their own.
_SPAN_LABELS = {"1": 1, "0": 0, "-1": -1, "unsure": -1}
_START_KEYS, _END_KEYS = ("start", "begin"), ("end", "stop")
_MAX_SPANS, _MAX_PLACE = 10_000, 1 << 31
_MAX_BITS = 10_000


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion:
    """A question with the answer to read. `accepted` are the accepted answers, `hallucinated` the
    label, None if there is none, `spans` (start, end, label) of parts of the answer, in characters,
    labeled 1 (hallucinated), 0 or -1 (unsure), None if it is labeled as a whole only. `group` names
    what must not be split over training and test, such as a document or a conversation. `problem`
    says why the record cannot be used; it then has its id, question and answer where these can be
    read. `kept` are further columns of the record."""

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
    kept: Mapping[str, Any] = field(default_factory=dict)


class OwnIds:
    """Gives every answer an id of its own: the second answer to the question "q1" is "q1#2". Of
    ids, only hashes are kept, with the number of the last answer. `text` says what was done, "" if
    nothing."""

    def __init__(self) -> None:
        self._last: dict[bytes, int] = {}
        self._repeated, self._example = 0, ""

    def give(self, answer: AnsweredQuestion) -> AnsweredQuestion:
        key = _hash_id(answer.id)
        if key not in self._last:
            self._last[key] = 1
            return answer
        number, name = self._last[key], answer.id
        while _hash_id(name) in self._last:  # another id may be spelled so
            number += 1
            name = f"{answer.id}#{number}"
        self._last[key], self._last[_hash_id(name)] = number, 1
        self._repeated += 1
        self._example = self._example or name
        return replace(answer, id=name)

    @property
    def text(self) -> str:
        if not self._repeated:
            return ""
        count = counted(self._repeated, "answer")
        return for_terminal(f"renamed {count} whose ID is repeated, such as {self._example}")


def _hash_id(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=12).digest()


def read_answers(source: RowSource, own_ids: OwnIds | None = None) -> Iterator[AnsweredQuestion]:
    """The answered questions of a source, each with an id of its own. Rows of a table without any
    text are skipped. Raises InputError for a label that is not understood."""
    own_ids = own_ids or OwnIds()
    for row in source.rows:
        if not row.is_blank:
            yield own_ids.give(read_answered(row, source.stem, source.format))


def read_answered(row: Row, stem: str, format: RowFormat = RECOGNIZED) -> AnsweredQuestion:
    """The answered question of a row; records without an id are named after `stem`. Raises
    InputError for a label that is not understood."""
    name = f"{stem}_{row.number}"
    try:
        fields = row.read_fields(format, answers=True)
    except UnusableRecordError as reason:
        return AnsweredQuestion(id=name, problem=f"{row.where}: {reason}")
    try:
        return _read_fields(fields, name)
    except LabelError as error:
        where = f'{row.where}: its column "{error.column}"'
        raise InputError(explain_labels(where, [error.value])) from None
    except UnusableRecordError as reason:
        problem = f"{row.where}: {reason}"
        return AnsweredQuestion(
            id=_find_text(lambda: read_id(fields, name)) or name,
            question=_find_text(lambda: read_conversation(fields).question)
            or _find_text(lambda: question_text(fields, may_be_missing=True)),
            answer=_find_text(lambda: _answer_text(fields)),
            problem=problem,
            kept=fields.kept(),
        )


def _find_text(read: Callable[[], str]) -> str:
    """A text of a record that cannot be used; "" if it cannot be read itself."""
    try:
        text = read().strip()
        _check_encodable("text", text)
    except UnusableRecordError:
        return ""
    return text


def refuse_unanswered(use: ColumnUse) -> None:
    """Raises InputError if a file has no column for answers, or none for what they answer, or if a
    label is not understood."""
    found = list_columns(use.columns)
    has = {role for role, columns in use.roles.items() if columns}
    if not use.columns:
        return
    if not has & {"answer", "messages"}:
        raise InputError(
            f"{use.name} has no column with answers to score (found: {found}): name it answer or "
            'response, or say which it is with `columns`, such as "answer=Antwort".'
        )
    if not has & {"question", "context", "messages"}:
        raise InputError(
            f"{use.name} has no column with questions (found: {found}): name it question or "
            'prompt, or say which it is with `columns`, such as "question=Frage".'
        )
    use.refuse_labels()


def refuse_unclear(use: ColumnUse) -> None:
    """Raises InputError if a file has answers and labels: an answer may be one to read, or one that
    is accepted."""
    answer = use.answer or next(iter(use.roles["messages"]), None)
    if answer is None or use.label is None:
        return
    asked = "".join(f'"{one}" as the question, ' for one in use.roles["question"][:1])
    raise InputError(
        f'{use.name} has answers and labels: it is read with {asked}"{answer}" as the answer and '
        f'"{use.label}" as its label. Use `answers="given"` to read these answers, or '
        '`answers="generate"` to have the model answer, with those of the file as the accepted '
        "ones."
    )


def _read_fields(fields: Fields, name: str) -> AnsweredQuestion:
    answer = _answer_text(fields)
    # A claim or a summary needs no question, but what it is from.
    question = read_question(fields, name, answer=answer.strip(), may_lack_question=True)
    answer = answer or read_conversation(fields).answer
    group = record_id(fields, "group")
    _check_encodable("question", question.question, *question.answers, *question.parts)
    _check_encodable("context", question.context or "")
    _check_encodable("answer", answer)
    _check_encodable("id", question.id, group or "", question.category or "")
    label = fields.read_label()
    spans = _read_spans(fields, answer, label)
    if label is None and spans is not None:
        label = any(kind == 1 for _, _, kind in spans)
    return AnsweredQuestion(
        id=question.id,
        question=question.question,
        answer=answer.strip(),
        context=question.context,
        accepted=question.answers,
        hallucinated=label,
        spans=spans,
        group=group,
        category=question.category,
        kept=fields.kept(),
    )


def _answer_text(fields: Fields) -> str:
    """As it is in the file, so that spans have their places. An empty answer is scored as such: it
    is unavailable."""
    value = next(fields.values("answer"), None)
    if value is None or (isinstance(value, float) and math.isnan(value)):  # in a table
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise UnusableRecordError("its answer is an integer of thousands of digits")
        return str(value)
    if not isinstance(value, str):
        raise UnusableRecordError(f"its answer is a {type(value).__name__}, not text")
    check_length("answer", value)
    return value


def _check_encodable(what: str, *texts: str) -> None:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise UnusableRecordError(
            f"its {what} contains an invalid character (a lone surrogate)"
        ) from None


def _read_spans(
    fields: Fields, answer: str, hallucinated: bool | None
) -> tuple[tuple[int, int, int], ...] | None:
    """The spans in the answer without the spaces around it. One without a label is hallucinated,
    unless the whole answer is correct."""
    value = next(
        (one for one in map(_unpack_spans, fields.values("spans")) if one is not None), None
    )
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) > _MAX_SPANS:
        raise UnusableRecordError("its spans are not a list of [start, end]")
    usual = 0 if hallucinated is False else 1
    before, length = len(answer) - len(answer.lstrip()), len(answer.strip())
    spans = []
    for one in value:
        start, end, label = _read_span(one, fields.format, answer, usual)
        start, end = max(0, start - before), min(length, end - before)
        if start < end:
            spans.append((start, end, label))
    return tuple(spans)


def _unpack_spans(value: object) -> Any:
    """None without any; a cell of a table has them as JSON."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value) if value.strip() else None
    except ValueError as error:
        raise UnusableRecordError(f"its spans are not JSON ({error})") from None


def _read_span(span: object, format: RowFormat, answer: str, usual: int) -> tuple[int, int, int]:
    label: object = None
    said = None
    if isinstance(span, Mapping):
        start, end = (_first(span, keys) for keys in (_START_KEYS, _END_KEYS))
        label, said = span.get("label"), span.get("text")
    elif isinstance(span, list | tuple) and 2 <= len(span) <= 3:
        start, end, label = (*span, None)[:3]
    else:
        raise UnusableRecordError(f"its span {shortened(span):.80} is not [start, end]")
    if not all(type(place) is int and abs(place) < _MAX_PLACE for place in (start, end)):
        raise UnusableRecordError(
            f"its span {shortened(span):.80} has no whole numbers as start and end"
        )
    if not 0 <= start < end <= len(answer):
        raise UnusableRecordError(
            f"its span from {start} to {end} is not in the answer, which has {len(answer):,} "
            "characters"
        )
    found = answer[start:end]
    if isinstance(said, str) and said.split() != found.split():
        raise UnusableRecordError(
            f'its span from {start} to {end} is "{said:.40}", but "{found:.40}" is there in the '
            "answer"
        )
    return start, end, _span_label(label, format, usual)


def _first(span: Mapping[Any, Any], keys: tuple[str, ...]) -> Any:
    return next((span[key] for key in keys if key in span), None)


def _span_label(label: object, format: RowFormat, usual: int) -> int:
    text = label_text(label)
    if text.casefold() in _SPAN_LABELS:
        return _SPAN_LABELS[text.casefold()]
    try:
        found = format.read_label("", text)
    except LabelError as error:
        raise UnusableRecordError(
            f'its span has the label "{error.value}": give correct, hallucinated or unsure'
        ) from None
    return usual if found is None else int(found)
