"""Questions, and how records with named fields become questions.

Columns are recognized by name, without options; unusable records are skipped and listed.
"""

import ast
import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from clew.base.errors import InputError, without_settings
from clew.base.texts import suggest
from clew.hallucination.questions.columns import (
    NAMES,
    RECOGNIZED,
    ColumnUse,
    Fields,
    LabelError,
    RowFormat,
    find_column,
    find_fields,
    find_roles,
    is_doubtful_context,
    label_text,
    list_columns,
    pick,
    plain_fields,
)
from clew.hallucination.questions.messages import UnusableRecordError, read_conversation
from clew.storage.disk_list import DiskList
from clew.storage.text_files import MAX_RECORD_CHARACTERS

# Inside an answer: TriviaQA's {"value", "aliases", ...}, SQuAD's {"text": [...]}.
_ANSWER_KEYS = ("value", "text", "answer", "name", "aliases", "normalized_aliases", "human_answers")
# Inside a context: HotpotQA's {"sentences": [[...]]}, PubMedQA's {"contexts": [...]}.
_CONTEXT_KEYS = ("text", "contexts", "sentences", "passage_text", "passage", "content")
_MAX_CATEGORY_CHARACTERS = 64
_MAX_ID_CHARACTERS = 4096
# Of all accepted answers of a question together. It also bounds a list that is stored as text:
# Python's parser takes hundreds of bytes per character.
_MAX_ANSWER_CHARACTERS = 1 << 18
_MAX_ANSWER_DEPTH = 32
_MAX_CONTEXT_DEPTH = 8
_TOO_LARGE = 10**4000  # Python refuses to write out an integer of more than 4,300 digits.
# Skipped records that are listed one by one, and column names that are kept for an error message.
_MAX_LISTED = 100_000
_MAX_COLUMNS = 1000
_MAX_PART_CHARACTERS = 200
# First rows that are looked at before all are read.
_PEEKED_ROWS, _PEEKED_CHARACTERS = 1000, 1 << 22
_LISTED_LABELS = 20


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question, its accepted answers (none if the dataset has none), and the text to answer it
    from, if it has one. If it asks for several facts, `parts` names for each accepted answer the
    one it is accepted for."""

    id: str
    question: str
    answers: tuple[str, ...]
    category: str | None = None
    context: str | None = None
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SkippedQuestion:
    """A record that was skipped: where it is ("line 17", "row 3 (id x)") and why."""

    where: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """The questions to ask, the skipped records, and a hash that identifies the whole dataset.

    `sha256` covers all usable questions, not only those requested, so a store can grow later. For a
    dataset on the Hub, which is never read completely, it covers name, split and revision.
    `contexts_sha256` is a hash of the contexts alone; empty if there are none. `has_parts` says
    whether some question asks for several facts.
    `instruction` describes the expected form of the answers; it is part of a chat model's prompt.
    None: it depends on what the accepted answers look like.
    """

    name: str
    questions: Sequence[Question]
    skipped: list[SkippedQuestion]
    sha256: str
    instruction: str | None = None
    contexts_sha256: str = ""
    has_parts: bool = False

    def without_contexts(self) -> "QuestionSet":
        bare = DiskList(replace(question, context=None) for question in self.questions)
        return replace(self, questions=bare, contexts_sha256="")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What was recognized of a file. `columns` are all of its columns, None if its records name
    their own; `form` is its encoding and delimiter where they are not the usual ones."""

    columns: tuple[str, ...] | None = None
    form: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A record as it was read, or the reason why it could not be read. `is_blank`: it stands for
    rows of a table without any text, which are no records."""

    number: int
    where: str
    record: object = None
    problem: str | None = None
    is_blank: bool = False
    layout: Layout = Layout()

    def read_fields(self, format: RowFormat = RECOGNIZED, *, answers: bool = False) -> Fields:
        """The fields and what they are. Raises UnusableRecordError if there are none."""
        if self.problem is not None:
            raise UnusableRecordError(self.problem)
        if not isinstance(self.record, Mapping):
            kind = type(self.record).__name__
            raise UnusableRecordError(f"it is a {kind}, not a record with named fields")
        return find_fields(self.record, format, answers=answers)


@dataclass(kw_only=True)
class RowSource:
    """The rows of a dataset, read lazily and once, and how they are read.

    Records without an id are named after `stem`. `sha256` identifies a dataset that is never read
    completely, such as one on the Hub; otherwise the hash is computed from all rows.
    """

    name: str
    stem: str
    rows: Iterable[Row]
    sha256: str | None = None
    format: RowFormat = RECOGNIZED

    @property
    def read_whole(self) -> bool:
        return self.sha256 is None

    def peek(self) -> list[Row]:
        """The first rows, which stay in `rows`."""
        first, size = list[Row](), 0
        rest = iter(self.rows)
        for row in islice(rest, _PEEKED_ROWS if self.read_whole else _PEEKED_ROWS // 10):
            first.append(row)
            size += _count_characters(row.record)
            if size > _PEEKED_CHARACTERS:
                break
        self.rows = chain(first, rest)
        return first


def _count_characters(record: object) -> int:
    values = record.values() if isinstance(record, Mapping) else [record]
    try:
        return sum(len(value if isinstance(value, str) else str(value)) for value in values)
    except ValueError:  # an integer of thousands of digits
        return 0


def describe_columns(source: RowSource, *, answers: bool) -> ColumnUse:
    """What the columns of a file are taken for, from its first rows; `answers`: as answers to read,
    rather than as questions with accepted answers. Raises InputError for columns that the user
    named and that are not there."""
    rows = source.peek()
    layout = next((row.layout for row in rows), Layout())
    records = [row.record for row in rows if isinstance(row.record, Mapping)]
    found: dict[Any, None] = dict.fromkeys(layout.columns or ())
    for record in records if layout.columns is None else ():
        found.update(dict.fromkeys(islice(record, max(0, _MAX_COLUMNS - len(found)))))
    columns = tuple(found)
    if columns:
        _refuse_missing(source, columns)
    roles = find_roles(columns, source.format, answers)
    _refuse_twins(source, columns, roles)
    labels, strange = _find_labels(records, source.format) if answers else ({}, {})
    return ColumnUse(
        name=source.name,
        form=layout.form,
        columns=tuple(map(str, columns)),
        roles={role: tuple(map(str, names)) for role, names in roles.items()},
        labels=labels,
        strange={column: tuple(values) for column, values in strange.items()},
    )


def _refuse_missing(source: RowSource, columns: Sequence[Any]) -> None:
    named = [("columns", one) for _, one in source.format.columns if one]
    named += [("keep_columns", one) for one in source.format.keep if one != "*"]
    for setting, column in named:
        if find_column(column, columns) is None:
            raise InputError(
                f'{source.name} has no column "{column}"{suggest(column, map(str, columns))} '
                f"(found: {list_columns(columns)}): correct `{setting}`."
            )


def _refuse_twins(
    source: RowSource, columns: Sequence[Any], roles: Mapping[str, Sequence[Any]]
) -> None:
    chosen = {column for _, column in source.format.columns}
    for role, used in roles.items():
        for column in used:
            twin = f"{column} (2)"
            if twin in columns and not chosen & {column, twin}:
                raise InputError(
                    f'{source.name} has two columns "{column}": say which one is the {role} with '
                    f'`columns`, such as "{role}={twin}" for the second one.'
                )


def _find_labels(
    records: Sequence[Mapping[Any, Any]], format: RowFormat
) -> tuple[dict[str, dict[str, bool | None]], dict[str, dict[str, None]]]:
    """The labels in some records by column: those that are understood, and the others."""
    known: dict[str, dict[str, bool | None]] = {}
    strange: dict[str, dict[str, None]] = {}
    for record in records:
        for column in find_fields(record, format, answers=True).roles["label"]:
            try:
                label = format.read_label(str(column), record[column])
                found = known.setdefault(str(column), {})
                if len(found) < _LISTED_LABELS:
                    found[label_text(record[column])] = label
                if label is not None:
                    break
            except LabelError as error:
                strange.setdefault(error.column, {})[error.value] = None
    return known, strange


class Collector:
    """Turns rows into questions: keeps the first `limit`, hashes all, lists the skipped. `fix` is
    what to do if none can be used."""

    def __init__(
        self,
        stem: str,
        limit: int | None,
        fix: str = "fix the file or give another one",
        format: RowFormat = RECOGNIZED,
    ) -> None:
        self._stem, self._fix, self._format = stem, fix, format
        self._limit = limit
        self._questions: list[Question] | DiskList[Question] = []
        self._skipped: list[SkippedQuestion] = []
        self._ids: set[str] = set()
        self._not_listed = 0
        self._digest = hashlib.sha256()
        self._contexts: Any = None  # a digest of them
        self._has_parts = False

    @property
    def full(self) -> bool:
        return self._limit is not None and len(self._questions) >= self._limit

    def add_row(self, row: Row) -> None:
        try:
            fields = row.read_fields(self._format)
            self.add(read_question(fields, f"{self._stem}_{row.number}"))
        except UnusableRecordError as reason:
            self._skip(row, str(reason))

    def _skip(self, row: Row, reason: str) -> None:
        if len(self._skipped) >= _MAX_LISTED:
            self._not_listed += 1
            return
        record = row.record if isinstance(row.record, Mapping) else {}
        name = record_id(find_fields(record, self._format, answers=False))
        where = f"{row.where} (id {name:.80})" if name else row.where
        self._skipped.append(SkippedQuestion(where=where, reason=reason))

    def add(self, question: Question) -> None:
        if question.id in self._ids:
            raise UnusableRecordError("its id is a duplicate")
        parts = [question.id, question.question, *question.answers, *question.parts]
        try:
            (question.context or "").encode()
            self._digest.update(json.dumps(parts, ensure_ascii=False).encode())
        except UnicodeEncodeError:
            raise UnusableRecordError(
                "its text contains an invalid character (a lone surrogate)"
            ) from None
        self._ids.add(question.id)
        self._has_parts = self._has_parts or bool(question.parts)
        if question.context is not None:
            self._contexts = self._contexts or hashlib.sha256()
            self._contexts.update(json.dumps([question.id, question.context]).encode())
        if not self.full:
            self._questions.append(question)

    def finish(self, name: str, sha256: str | None = None) -> QuestionSet:
        if not self._questions:
            raise InputError(self._why_none(name))
        if self._not_listed:
            where = f"{self._not_listed:,} more records"
            self._skipped.append(SkippedQuestion(where=where, reason="not listed one by one"))
        contexts = self._contexts.hexdigest() if self._contexts else ""
        return QuestionSet(
            name=name,
            questions=self._questions,
            skipped=self._skipped,
            sha256=sha256 or self._digest.hexdigest(),
            contexts_sha256=contexts and (sha256 or contexts),
            has_parts=self._has_parts,
        )

    def _why_none(self, name: str) -> str:
        if not self._skipped:
            return f"{name} is empty: give at least one question"
        first = self._skipped[0]
        return (
            f"{name}: none of the {len(self._skipped) + self._not_listed:,} records can be used "
            f"({first.where}: {first.reason}): {self._fix}"
        )


def refuse_without_questions(use: ColumnUse) -> None:
    """Raises InputError if a file has no column for questions."""
    if use.columns and not use.roles["question"] and not use.roles["messages"]:
        raise InputError(
            f"{use.name} has no question column (found: {list_columns(use.columns)}): name it one "
            f"of {', '.join(NAMES['question'])}, or say which it is with `columns`, such as "
            f'"question={list_columns(use.columns[:1])}".'
        )


def read_question(
    fields: Fields, fallback_id: str, *, answer: str = "", may_lack_question: bool = False
) -> Question:
    """The question of a record. `answer` is one that the record has to it. With a context, the
    question may be missing if that is allowed. Raises UnusableRecordError."""
    name = read_id(fields, fallback_id)
    parts = _answer_parts(fields)
    talk = read_conversation(fields, answer)
    context = join_context(read_contexts(fields), talk.context)
    return Question(
        id=name,
        question=talk.question or question_text(fields, may_lack_question and context is not None),
        answers=tuple(text for _, text in parts) or _accepted_answers(fields.values("accepted")),
        parts=tuple(part for part, _ in parts),
        category=_category(fields),
        context=context,
    )


def question_text(fields: Fields, may_be_missing: bool) -> str:
    """The column with the question as text. Raises UnusableRecordError."""
    value = next(fields.values("question"), None)
    if may_be_missing and (value is None or value == "" or value != value):  # NaN in a table
        return ""
    if not fields.roles["question"]:
        raise UnusableRecordError("it has no question")
    if isinstance(value, Mapping):  # Natural Questions: {"text": ..., "tokens": ...}
        value = value.get("text")
    if value is None or (isinstance(value, str) and not value.strip()):
        raise UnusableRecordError("its question is empty")
    if not isinstance(value, str):
        raise UnusableRecordError(f"its question is a {type(value).__name__}, not text")
    check_length("question", value)
    return value.strip()


def check_length(what: str, text: str, most: int = MAX_RECORD_CHARACTERS) -> None:
    if len(text) > most:
        raise UnusableRecordError(
            f"its {what} has {len(text):,} characters; at most {most:,} are allowed"
        )


def read_contexts(fields: Fields) -> str | None:
    """The first one that is not empty. A column whose name may mean something else, unless it was
    chosen or there is no question, is one only if it is a text of several words."""
    asked = any(map(bool, fields.values("question"))) and not fields.is_chosen("context")
    for column, value in zip(fields.roles["context"], fields.values("context"), strict=True):
        doubtful = asked and is_doubtful_context(column)
        try:
            text = read_context(value, records=not doubtful)
        except UnusableRecordError:
            if not doubtful:
                raise
            continue
        if text and not (doubtful and len(text.split(maxsplit=1)) < 2):
            return text
    return None


def join_context(*texts: str | None) -> str | None:
    joined = "\n\n".join(filter(None, texts))
    check_length("context", joined)
    return joined or None


def read_id(fields: Fields, fallback: str) -> str:
    """The id of a record. Raises UnusableRecordError if it is too long."""
    name = record_id(fields) or fallback
    check_length("id", name, _MAX_ID_CHARACTERS)
    return name


def record_id(fields: Fields, role: str = "id") -> str | None:
    """The first id of a record, or the first name of its group."""
    for value in fields.values(role):
        if isinstance(value, str | float) or (isinstance(value, int) and abs(value) < _TOO_LARGE):
            return next(_texts(value), None)
    return None


def _accepted_answers(values: Iterable[object]) -> tuple[str, ...]:
    answers = (text for value in values for text in _texts(_unpack(value)))
    found: dict[str, None] = {}
    characters = 0
    for text in answers:
        if text in found:
            continue
        found[text] = None
        characters += len(text)
        if characters > _MAX_ANSWER_CHARACTERS:
            raise UnusableRecordError(
                f"its accepted answers have more than {_MAX_ANSWER_CHARACTERS:,} characters in "
                "total"
            )
    return tuple(found)


def _answer_parts(fields: Fields) -> list[tuple[str, str]]:
    """The accepted answers with the part of the answer that they are accepted for."""
    found: list[tuple[str, str]] = []
    for value in map(_unpack_parts, fields.values("parts")):
        for name, answers in value.items() if isinstance(value, Mapping) else ():
            part = " ".join(str(name).split())[:_MAX_PART_CHARACTERS]
            found += [(part, text) for text in _accepted_answers([answers])]
    return [(part, text) for part, text in found if part]


def _unpack_parts(cell: object) -> object:
    """A mapping stored as JSON in a table."""
    if not isinstance(cell, str) or not cell.strip() or len(cell) > _MAX_ANSWER_CHARACTERS:
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        raise UnusableRecordError("its answer_parts is neither a record nor JSON of one") from None


def _category(fields: Fields) -> str | None:
    for value in fields.values("category"):
        value = value.strip() if isinstance(value, str) else ""
        if 0 < len(value) <= _MAX_CATEGORY_CHARACTERS and value.isprintable():
            return value
    return None


def _texts(value: object, depth: int = 0) -> Iterator[str]:
    """The answers in a value, nested or not, without empty ones."""
    if depth > _MAX_ANSWER_DEPTH:
        raise UnusableRecordError(
            f"its answers are nested more than {_MAX_ANSWER_DEPTH} levels deep"
        )
    if isinstance(value, str):
        if text := value.strip():
            yield text
    elif isinstance(value, bool):
        yield from ("yes", "true") if value else ("no", "false")
    elif isinstance(value, float):
        if value == value:  # a missing number in a table is NaN
            yield str(int(value)) if value.is_integer() else str(value)
    elif isinstance(value, Mapping):
        fields = plain_fields(value)
        for key in pick(fields, _ANSWER_KEYS):
            yield from _texts(fields[key], depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, depth + 1)
    elif isinstance(value, int) and abs(value) >= _TOO_LARGE:
        raise UnusableRecordError("it contains an integer of more than 4,000 digits")
    elif value is not None and not isinstance(value, bytes):
        yield str(value)


def _unpack(cell: object) -> object:
    """A list or TriviaQA answer stored as text in a table, in JSON or Python syntax."""
    if not isinstance(cell, str) or len(cell) > _MAX_ANSWER_CHARACTERS:
        return cell
    if not cell.strip().startswith(("[", "{")):
        return cell
    for parse in (json.loads, ast.literal_eval):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                value = parse(cell.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        # "[0, 1]" is an interval; only a list of strings is a list of answers.
        if isinstance(value, list) and all(isinstance(item, str | dict) for item in value):
            return value
        if isinstance(value, dict) and pick(plain_fields(value), _ANSWER_KEYS):
            return value
    return cell


def first_line(error: BaseException) -> str:
    said = without_settings(str(error)).strip() or type(error).__name__
    return said.splitlines()[0].rstrip(".")


def read_context(value: object, *, records: bool = True) -> str | None:
    """The context as one text, None if it is empty. Passages are separated by a blank line, the
    sentences of one by a space. A record, such as of a business, is read as JSON if `records`.
    Raises ValueError for anything else than text."""
    text = "\n\n".join(
        filter(None, (_join(one, records) for one in _passages(value, records)))
    ).strip()
    check_length("context", text)
    return text or None


def _passages(value: object, records: bool) -> list[Any]:
    value = _unwrap(value, records)
    if value is None or (isinstance(value, float) and value != value):  # NaN in a table
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _join(value: object, records: bool, depth: int = 0) -> str:
    value = _unwrap(value, records)
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list | tuple) and depth < _MAX_CONTEXT_DEPTH:
        return " ".join(filter(None, (_join(inner, records, depth + 1) for inner in value)))
    raise UnusableRecordError(f"its context contains a {type(value).__name__}, not text")


def _unwrap(value: object, records: bool) -> object:
    if not isinstance(value, Mapping):
        return value
    known = [value[key] for key in _CONTEXT_KEYS if key in value]
    if known or not value:
        return next((one for one in known if one is not None), None)
    if not records:
        keys = ", ".join(_CONTEXT_KEYS)
        raise UnusableRecordError(f"its context is a record without any of {keys}")
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        raise UnusableRecordError("its context is a record that is not JSON") from None
