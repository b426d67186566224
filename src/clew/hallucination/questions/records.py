"""Questions, and how records with named fields become questions.

Columns are recognized by name, without options; unusable records are skipped and listed.
"""

import ast
import hashlib
import json
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from clew.base.errors import InputError, without_settings
from clew.storage.disk_list import DiskList
from clew.storage.text_files import MAX_RECORD_CHARACTERS

# If several are present, the first in this order is used. Case, spaces and underscores are ignored:
# "Question ID" is question_id.
_ID_COLUMNS = ("question_id", "id", "qid", "_id", "example_id", "idx")
QUESTION_COLUMNS = ("question", "query", "question_text", "problem", "prompt", "input")
_CATEGORY_COLUMNS = ("category", "topic", "subject", "type")
# All of these that are present are used.
_ANSWER_COLUMNS = (
    *("answer", "answers", "accepted_answers", "correct_answers", "best_answer", "short_answers"),
    *("target", "targets", "gold", "gold_answer", "gold_answers", "possible_answers"),
    *("ground_truth", "ground_truths", "reference_answer", "final_answer"),
    *("aliases", "answer_aliases"),
)
# Of a record with an answer to score, in the order in which they are looked for. If an earlier one
# is present, "answer" is an accepted answer, as in a question set.
RESPONSE_COLUMNS = (
    *("response", "generated_answer", "model_answer", "prediction", "completion"),
    *("generated_text", "output", "answer"),
)
# Whether that answer is hallucinated, or whether it is correct (a score of 1).
HALLUCINATED_COLUMNS = ("hallucinated", "is_hallucinated", "hallucination", "label")
CORRECT_COLUMNS = ("correct", "is_correct", "score")
# Inside an answer: TriviaQA's {"value", "aliases", ...}, SQuAD's {"text": [...]}.
_ANSWER_KEYS = ("value", "text", "answer", "name", "aliases", "normalized_aliases", "human_answers")
CONTEXT_COLUMNS = (
    *("context", "contexts", "passage", "passages", "paragraph", "retrieved_contexts"),
    *("knowledge", "story"),
)
# Inside a context: HotpotQA's {"sentences": [[...]]}, PubMedQA's {"contexts": [...]}.
_CONTEXT_KEYS = ("text", "contexts", "sentences", "passage_text", "passage", "content")
# A mapping from the name of each part of the answer to what is accepted for it.
_PARTS_COLUMNS = ("answer_parts",)
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
_MAX_NAME_CHARACTERS = 200


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
        bare = [replace(question, context=None) for question in self.questions]
        return replace(self, questions=bare, contexts_sha256="")


class UnusableRecordError(ValueError):
    """A record that cannot become a question; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A record as it was read, or the reason why it could not be read. `is_blank`: it stands for
    rows of a table without any text, which are no records."""

    number: int
    where: str
    record: object = None
    problem: str | None = None
    is_blank: bool = False

    def read_fields(self) -> Mapping[Any, Any]:
        """The fields by name. Raises UnusableRecordError if there are none."""
        if self.problem is not None:
            raise UnusableRecordError(self.problem)
        if not isinstance(self.record, Mapping):
            kind = type(self.record).__name__
            raise UnusableRecordError(f"it is a {kind}, not a record with named fields")
        return self.record


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """The rows of a dataset, read lazily.

    Records without an id are named after `stem`. `sha256` identifies a dataset that is never read
    completely, such as one on the Hub; otherwise the hash is computed from all rows.
    """

    name: str
    stem: str
    rows: Iterable[Row]
    sha256: str | None = None

    @property
    def read_whole(self) -> bool:
        return self.sha256 is None


class Collector:
    """Turns rows into questions: keeps the first `limit`, hashes all, lists the skipped. `fix` is
    what to do if none can be used."""

    def __init__(
        self, stem: str, limit: int | None, fix: str = "fix the file or give another one"
    ) -> None:
        self._stem, self._fix = stem, fix
        self._limit = limit
        self._questions: list[Question] | DiskList[Question] = []
        self._skipped: list[SkippedQuestion] = []
        self._ids: set[str] = set()
        self._not_listed = 0
        self._columns: dict[str, None] = {}
        self._digest = hashlib.sha256()
        self._contexts: Any = None  # a digest of them
        self._has_parts = False

    @property
    def full(self) -> bool:
        return self._limit is not None and len(self._questions) >= self._limit

    def add_row(self, row: Row) -> None:
        try:
            fields = row.read_fields()
            if len(self._columns) < _MAX_COLUMNS:
                names = islice(fields, _MAX_COLUMNS)
                self._columns.update(dict.fromkeys(map(_shortened_name, names)))
            self.add(read_question(plain_fields(fields), f"{self._stem}_{row.number}"))
        except UnusableRecordError as reason:
            self._skip(row, str(reason))

    def _skip(self, row: Row, reason: str) -> None:
        if len(self._skipped) >= _MAX_LISTED:
            self._not_listed += 1
            return
        fields = plain_fields(row.record) if isinstance(row.record, Mapping) else {}
        name = _record_id(fields)
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
        few = 0 < len(self._columns) < _MAX_COLUMNS
        if few and not pick(plain_fields(self._columns), QUESTION_COLUMNS):
            return _no_question_column(name, self._columns)
        first = self._skipped[0]
        return (
            f"{name}: none of the {len(self._skipped) + self._not_listed:,} records can be used "
            f"({first.where}: {first.reason}): {self._fix}"
        )


def _no_question_column(name: str, columns: Iterable[str]) -> str:
    found = ", ".join(map(_shortened_name, islice(columns, 20))) or "none"
    return (
        f"{name} has no question column (found: {found}): name it one of "
        f"{', '.join(QUESTION_COLUMNS)}"
    )


def read_question(fields: Mapping[str, Any], fallback_id: str) -> Question:
    column = next(iter(pick(fields, QUESTION_COLUMNS)), None)
    if column is None:
        raise UnusableRecordError("it has no question")
    name = _record_id(fields) or fallback_id
    check_length("id", name, _MAX_ID_CHARACTERS)
    parts = _answer_parts(fields)
    return Question(
        id=name,
        question=_question_text(fields[column]),
        answers=tuple(text for _, text in parts) or _accepted_answers(fields),
        parts=tuple(part for part, _ in parts),
        category=_category(fields),
        context=_context(fields),
    )


def _question_text(value: object) -> str:
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


def _context(fields: Mapping[str, Any]) -> str | None:
    """The first one that is not empty."""
    found = (read_context(fields[column]) for column in pick(fields, CONTEXT_COLUMNS))
    return next((text for text in found if text), None)


def _record_id(fields: Mapping[str, Any]) -> str | None:
    for column in pick(fields, _ID_COLUMNS):
        value = fields[column]
        if isinstance(value, str | float) or (isinstance(value, int) and abs(value) < _TOO_LARGE):
            return next(_texts(value), None)
    return None


def _accepted_answers(fields: Mapping[str, Any]) -> tuple[str, ...]:
    answers = (
        text for column in pick(fields, _ANSWER_COLUMNS) for text in _texts(_unpack(fields[column]))
    )
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


def _answer_parts(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The accepted answers with the part of the answer that they are accepted for."""
    found: list[tuple[str, str]] = []
    for column in pick(fields, _PARTS_COLUMNS):
        value = _unpack_parts(fields[column])
        for name, answers in value.items() if isinstance(value, Mapping) else ():
            part = " ".join(str(name).split())[:_MAX_NAME_CHARACTERS]
            found += [(part, text) for text in _accepted_answers({_ANSWER_COLUMNS[0]: answers})]
    return [(part, text) for part, text in found if part]


def _unpack_parts(cell: object) -> object:
    """A mapping stored as JSON in a table."""
    if not isinstance(cell, str) or not cell.strip() or len(cell) > _MAX_ANSWER_CHARACTERS:
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        raise UnusableRecordError(
            f"its {_PARTS_COLUMNS[0]} is neither a record nor JSON of one"
        ) from None


def _category(fields: Mapping[str, Any]) -> str | None:
    for column in pick(fields, _CATEGORY_COLUMNS):
        value = fields[column].strip() if isinstance(fields[column], str) else ""
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


def pick(fields: Collection[str], known: tuple[str, ...]) -> list[str]:
    """The normalized names among `fields` that are known, in the order of `known`."""
    return [name for name in _plain_names(known) if name in fields]


def plain_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    return {plain_name(name): value for name, value in record.items()}


@lru_cache(maxsize=64)
def _plain_names(columns: tuple[str, ...]) -> dict[str, None]:
    return dict.fromkeys(map(plain_name, columns))


def plain_name(column: str) -> str:
    return _plain_name(_shortened_name(column))


def _shortened_name(column: object) -> str:
    return str(column)[:_MAX_NAME_CHARACTERS]


@lru_cache(maxsize=4096)
def _plain_name(column: str) -> str:
    return re.sub(r"[\W_]+", "", column).casefold()


def useful_columns(name: str, columns: Sequence[str]) -> list[str]:
    """The columns to read, as the file spells them."""
    plain = {plain_name(column) for column in columns}
    if not pick(plain, QUESTION_COLUMNS):
        raise InputError(_no_question_column(name, columns))
    texts = (*QUESTION_COLUMNS, *CONTEXT_COLUMNS, *_ANSWER_COLUMNS, *_PARTS_COLUMNS)
    labels = (*RESPONSE_COLUMNS, *HALLUCINATED_COLUMNS, *CORRECT_COLUMNS)
    known = (*_ID_COLUMNS, *texts, *_CATEGORY_COLUMNS, *labels)
    useful = set(pick(plain, known))
    return [column for column in columns if plain_name(column) in useful]


def first_line(error: BaseException) -> str:
    said = without_settings(str(error)).strip() or type(error).__name__
    return said.splitlines()[0].rstrip(".")


def read_context(value: object) -> str | None:
    """The context as one text, None if it is empty. Passages are separated by a blank line, the
    sentences of one by a space. Raises ValueError for anything else than text."""
    text = "\n\n".join(filter(None, map(_join, _passages(value)))).strip()
    check_length("context", text)
    return text or None


def _passages(value: object) -> list[Any]:
    value = _unwrap(value)
    if value is None or (isinstance(value, float) and value != value):  # NaN in a table
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _join(value: object, depth: int = 0) -> str:
    value = _unwrap(value)
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list | tuple) and depth < _MAX_CONTEXT_DEPTH:
        return " ".join(filter(None, (_join(inner, depth + 1) for inner in value)))
    raise UnusableRecordError(f"its context contains a {type(value).__name__}, not text")


def _unwrap(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    found = next((value[key] for key in _CONTEXT_KEYS if key in value), None)
    if found is None:
        keys = ", ".join(_CONTEXT_KEYS)
        raise UnusableRecordError(f"its context is a record without any of {keys}")
    return found
