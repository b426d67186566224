"""Which column of a file is what: by its name, or as the user says; and what labels mean."""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Any

from clew.base.errors import InputError, without_settings
from clew.base.texts import for_terminal, list_some, shortened, suggest

# The names by which each role is recognized. Of id, question, category, group and spans, the first
# that has a value is used; of accepted answers, all. Case, spaces and underscores are ignored:
# "Question ID" is question_id.
_ACCEPTED = (
    *("answer", "answers", "accepted_answers", "correct_answers", "best_answer", "short_answers"),
    *("target", "targets", "gold", "gold_answer", "gold_answers", "possible_answers"),
    *("ground_truth", "ground_truths", "reference_answer", "final_answer"),
    *("aliases", "answer_aliases"),
)
# Their values tell which way they go: "true" is hallucinated in the first ones, correct in the
# second ones. A score is a number from 0 to 1 (correct).
_HALLUCINATED_NAMES = (
    *("hallucinated", "is_hallucinated", "hallucination", "is_hallucination", "has_hallucination"),
    *("unsupported", "is_unsupported", "thumbs_down", "is_wrong", "is_incorrect"),
)
_CORRECT_NAMES = (
    *("correct", "is_correct", "supported", "is_supported", "faithful", "is_faithful"),
    *("factual", "is_factual", "grounded", "is_grounded", "thumbs_up"),
)
_SCORE = "score"
# Names of other things too, such as of the place a question is from: only texts of several words.
_DOUBTFUL_CONTEXTS = ("source", "document", "documents", "article")
NAMES: dict[str, tuple[str, ...]] = {
    "question": ("question", "query", "question_text", "problem", "prompt", "input"),
    # If an earlier one is present, "answer" is an accepted answer, as in a question set.
    "answer": (
        *("response", "generated_answer", "model_answer", "prediction", "completion"),
        *("generated_text", "output", "answer"),
    ),
    "context": (
        *("context", "contexts", "passage", "passages", "paragraph", "retrieved_contexts"),
        *("knowledge", "story", *_DOUBTFUL_CONTEXTS),
    ),
    "id": ("question_id", "id", "qid", "_id", "example_id", "idx"),
    "label": (*_HALLUCINATED_NAMES, "label", "thumbs", *_CORRECT_NAMES, _SCORE),
    "spans": ("spans", "hallucinated_spans", "hallucination_spans"),
    "group": ("group", "document_id", "doc_id", "conversation_id", "session_id", "thread_id"),
    "category": ("category", "topic", "subject", "type"),
    "accepted": _ACCEPTED,
    "messages": ("messages", "conversation", "conversations", "chat"),
    # A mapping from the name of each part of the answer to what is accepted for it.
    "parts": ("answer_parts",),
}
ROLES = tuple(role for role in NAMES if role != "parts")
_SYNONYMS = {"source": "context", "answers": "accepted", "accepted_answers": "accepted"}
# What only a file of answers has.
_OF_ANSWERS = ("answer", "label", "spans", "group")
# Words for labels that are the same in every column; case, spaces and punctuation are ignored.
_HALLUCINATED = (
    *("hallucinated", "hallucination", "hallucinatory", "wrong", "incorrect", "unsupported"),
    *("notsupported", "unfaithful", "nonfactual", "inaccurate", "ungrounded", "down"),
    *("thumbsdown", "👎"),
)
_CORRECT = (
    *("correct", "right", "supported", "faithful", "factual", "accurate", "grounded"),
    *("nothallucinated", "up", "thumbsup", "👍"),
)
_UNLABELED = ("", "nan", "none", "null", "na", "unsure", "unknown", "refused", "excluded")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(_HALLUCINATED, True),
    **dict.fromkeys(_CORRECT, False),
    **dict.fromkeys(_UNLABELED),
}
_TRUE, _FALSE = ("1", "true", "yes", "y"), ("0", "false", "no", "n")
_CLASSES: dict[str, bool | None] = {"hallucinated": True, "correct": False, "none": None}
_CORRECT_SCORE = 0.5
_MAX_NAME_CHARACTERS = 200
_MAX_VALUE_CHARACTERS = 60
# Columns of a record that are remembered with what they are.
_FEW_CHARACTERS = 10_000


class LabelError(ValueError):
    """A label that is not understood. `column` and `value` are as in the file."""

    def __init__(self, column: str, value: str) -> None:
        super().__init__(column, value)
        self.column, self.value = column, value


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """How the rows of a file are read, beyond what is recognized: (role, column) pairs, in which
    the column "" means that there is none; (label, whether it means hallucinated) pairs, in which
    None means no label; the encoding of text; and further columns to keep, "*" for all."""

    columns: tuple[tuple[str, str], ...] = ()
    label_values: tuple[tuple[str, bool | None], ...] = ()
    encoding: str | None = None
    keep: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """What identifies it; empty for the default."""
        pairs = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in pairs if value}

    def read_label(self, column: str, value: object) -> bool | None:
        """Whether an answer is hallucinated; None without a label. Raises LabelError."""
        text = label_text(value)
        word = text.casefold()
        for known, meaning in self.label_values:
            if known.strip().casefold() == word:
                return meaning
        word = plain_name(text) or word
        if word in _UNLABELED or not self.label_values:
            name = plain_name(column)
            if name == plain_name(_SCORE) and (score := _read_score(text)) is not None:
                return score < _CORRECT_SCORE
            if word in _WORDS:
                return _WORDS[word]
            if name in _plain_names((*_HALLUCINATED_NAMES, *_CORRECT_NAMES)):
                is_turned = name in _plain_names(_CORRECT_NAMES)
                if word in (*_TRUE, *_FALSE):
                    return (word in _TRUE) != is_turned
        raise LabelError(column, text)


# Everything by its name.
RECOGNIZED = RowFormat()


def label_text(value: object) -> str:
    """A label as text: 1.0 is "1", True is "true"."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits
        text = shortened(value)
    return text[:_MAX_NAME_CHARACTERS].strip().removesuffix(".0")


def _read_score(text: str) -> float | None:
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        return None
    return number if 0 <= number <= 1 else None


def parse_format(
    columns: str | Mapping[str, str | None] | None = None,
    label_values: str | Mapping[str, str | Sequence[str]] | None = None,
    encoding: str | None = None,
    keep: str | Sequence[str] | None = None,
) -> RowFormat:
    """The format from settings as a user gives them. Raises InputError."""
    if encoding is not None:
        try:
            "".encode(encoding)
        except (LookupError, ValueError):
            raise InputError(
                "Python knows no such text encoding. Give one such as utf-8, utf-16 or latin-1.",
                setting="encoding",
                value=encoding,
            ) from None
    kept = _split("keep_columns", keep) if isinstance(keep, str) else keep or ()
    return RowFormat(
        columns=_parse_columns(columns),
        label_values=_parse_labels(label_values),
        encoding=encoding,
        keep=("*",) if [*kept] == ["all"] else tuple(kept),
    )


def _parse_columns(given: str | Mapping[str, str | None] | None) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for name, column in _pairs("columns", given, "question=Frage,answer=Antwort"):
        role = _SYNONYMS.get(name.strip().lower(), name.strip().lower())
        if role not in ROLES:
            raise InputError(
                f'there is no "{name}"{suggest(name, ROLES)}. Choose from: {", ".join(ROLES)}.',
                setting="columns",
                value=_shown(given),
            )
        column = (column or "").strip()
        other = next((one for one, same in found.items() if column and same == column), None)
        if role in found or other:
            what = f"{role} is given twice"
            if role not in found:
                what = f'"{column}" is given for {other} and for {role}'
            raise InputError(
                f"{what}: name one column for each.", setting="columns", value=_shown(given)
            )
        found[role] = column
    return tuple(found.items())


def _parse_labels(
    given: str | Mapping[str, str | Sequence[str]] | None,
) -> tuple[tuple[str, bool | None], ...]:
    found: dict[str, bool | None] = {}
    for name, values in _pairs("label_values", given, "hallucinated=wrong,correct=right"):
        if (kind := name.strip().lower()) not in _CLASSES:
            raise InputError(
                f'there is no class "{name}"{suggest(name, _CLASSES)}. Choose from: '
                f"{', '.join(_CLASSES)}.",
                setting="label_values",
                value=_shown(given),
            )
        for value in [values] if not isinstance(values, list | tuple) else values:
            if (text := label_text(value).casefold()) in found:
                raise InputError(
                    f'"{label_text(value)}" is given twice.',
                    setting="label_values",
                    value=_shown(given),
                )
            found[text] = _CLASSES[kind]
    return tuple(found.items())


def _pairs(setting: str, given: Any, example: str) -> list[tuple[str, Any]]:
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [(str(name), value) for name, value in given.items()]
    if not isinstance(given, str):
        raise InputError(f'give "{example}", or a dict.', setting=setting, value=_shown(given))
    parts = [one.partition("=") for one in _split(setting, given)]
    if wrong := next((name for name, equals, _ in parts if not equals), None):
        raise InputError(
            f'"{wrong}" has no "=": give pairs such as {example}.', setting=setting, value=given
        )
    return [(name, value) for name, _, value in parts]


def _split(setting: str, text: str) -> list[str]:
    """Parts between commas; double quotes keep a comma in a part."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace, lexer.whitespace_split = ",", True
    lexer.quotes, lexer.escape, lexer.commenters = '"', "", ""
    try:
        return [part.strip() for part in lexer if part.strip()]
    except ValueError:
        raise InputError("a double quote is not closed.", setting=setting, value=text) from None


def _shown(given: object) -> str:
    if not isinstance(given, Mapping):
        return str(given)
    return ",".join(f"{name}={value}" for name, value in given.items())


@dataclass(frozen=True, kw_only=True)
class Fields:
    """A record, and which of its columns are used for each role, in the order in which they are
    looked at."""

    record: Mapping[Any, Any]
    roles: Mapping[str, tuple[Any, ...]]
    format: RowFormat = RECOGNIZED

    def values(self, role: str) -> Iterator[Any]:
        return (self.record[column] for column in self.roles[role])

    def is_chosen(self, role: str) -> bool:
        """Whether the user named the column."""
        return role in dict(self.format.columns)

    def read_label(self) -> bool | None:
        """The first one that there is. Raises LabelError."""
        columns = self.roles["label"]
        found = (self.format.read_label(str(one), self.record[one]) for one in columns)
        return next((label for label in found if label is not None), None)

    def kept(self) -> dict[str, Any]:
        """The further columns to keep."""
        if not self.format.keep:
            return {}
        if self.format.keep != ("*",):
            found = (find_column(name, self.record) for name in self.format.keep)
            return _storable({str(one): self.record[one] for one in found if one is not None})
        used = {one for columns in self.roles.values() for one in columns}
        return _storable({str(one): v for one, v in self.record.items() if one not in used})


def _storable(value: Any) -> Any:
    """The value; a lone surrogate in it, which no file can hold, becomes a question mark."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_storable(one) for one in value]
    if isinstance(value, dict):
        return {_storable(name): _storable(one) for name, one in value.items()}
    return value


def find_fields(record: Mapping[Any, Any], format: RowFormat, *, answers: bool) -> Fields:
    """What the columns of a record are. With `answers`, its answer is the one to read; without, it
    is an accepted answer of the question."""
    names = tuple(record)
    few = sum(len(name) if isinstance(name, str) else 1 for name in names) < _FEW_CHARACTERS
    find = _find_known_roles if few else find_roles
    return Fields(record=record, roles=find(names, format, answers), format=format)


def find_roles(
    names: Sequence[Any], format: RowFormat, answers: bool
) -> Mapping[str, tuple[Any, ...]]:
    by_plain: dict[str, Any] = {}
    for name in names:
        by_plain.setdefault(plain_name(name), name)
    chosen = {role: find_column(column, names) for role, column in format.columns}
    taken = {*chosen.values()}
    roles: dict[str, tuple[Any, ...]] = {}
    for role, known in NAMES.items():
        found = (by_plain[plain] for plain in _plain_names(known) if plain in by_plain)
        roles[role] = tuple(name for name in found if name not in taken)
        if role in chosen:
            roles[role] = () if chosen[role] is None else (chosen[role],)
    if answers:
        roles["answer"] = roles["answer"][:1]
        roles["accepted"] = tuple(one for one in roles["accepted"] if one not in roles["answer"])
        return roles
    if chosen.get("answer") is not None:
        roles["accepted"] = (chosen["answer"], *roles["accepted"])
    return roles | dict.fromkeys(_OF_ANSWERS, ())


_find_known_roles = lru_cache(maxsize=64)(find_roles)


def find_column(wanted: str, names: Iterable[Any]) -> Any:
    """The column that is spelled so, or else the first that is but for case and punctuation."""
    names = [name for name in names if wanted]
    same = [name for name in names if str(name).strip() == wanted]
    alike = [name for name in names if plain_name(name) == plain_name(wanted)]
    return next(iter((*same, *alike)), None)


def is_doubtful_context(column: Any) -> bool:
    return plain_name(column) in _plain_names(_DOUBTFUL_CONTEXTS)


@dataclass(frozen=True, kw_only=True)
class ColumnUse:
    """What the columns of a file are taken for. `roles` has the columns of each role, as the file
    spells them; `labels` the labels in the first rows by column, with whether each means
    hallucinated; `strange` those of them that are not understood. `form` says what was recognized
    of the file."""

    name: str
    form: str
    columns: tuple[str, ...]
    roles: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, Mapping[str, bool | None]] = field(default_factory=dict)
    strange: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def answer(self) -> str | None:
        return next(iter(self.roles["answer"]), None)

    @property
    def label(self) -> str | None:
        """The column with labels; that of spans, if there is no other."""
        return next(iter((*self.roles["label"], *self.roles["spans"])), None)

    @cached_property
    def unused(self) -> tuple[str, ...]:
        used = {one for columns in self.roles.values() for one in columns}
        return tuple(one for one in self.columns if one not in used and one.strip())

    def kept(self, format: RowFormat) -> tuple[str, ...]:
        """The further columns that the format keeps."""
        if format.keep == ("*",):
            return tuple(map(_storable, self.unused))
        return tuple(_storable(str(find_column(name, self.columns))) for name in format.keep)

    @property
    def text(self) -> str:
        """One line: what each column is taken for."""
        used = (
            f"{role}={', '.join(map(_short, columns))}{self._labels_text(role, columns)}"
            for role, columns in self.roles.items()
            if columns
        )
        form = f" ({self.form})" if self.form else ""
        unused = list_some([*map(_short, self.unused)])
        more = f"; not used: {unused}" if unused else ""
        return for_terminal(f"{self.name}{form}: {', '.join(used)}{more}")

    def _labels_text(self, role: str, columns: Sequence[str]) -> str:
        if role != "label":
            return ""
        known = [pair for column in columns for pair in self.labels.get(column, {}).items()]
        strange = [one for column in columns for one in self.strange.get(column, ())]
        words = {True: "hallucinated", False: "correct", None: "no label"}
        texts = [f"{_short(value)} = {words[meaning]}" for value, meaning in known if value]
        texts += [f"{_short(value)} = ?" for value in strange]
        return f" ({list_some(texts)})" if texts else ""

    def refuse_labels(self) -> None:
        """Raises InputError if a label is not understood."""
        for column, values in self.strange.items():
            found = [*self.labels.get(column, {}), *values]
            raise InputError(explain_labels(f'{self.name}: its column "{column}"', found))


def explain_labels(where: str, values: Sequence[str]) -> str:
    """What to do about the labels of a column that do not say which answers are hallucinated."""
    shown = [_short(value) for value in values if value]
    return (
        f"{where} has the labels {list_some(shown)}, which do not say by themselves which answers "
        'are hallucinated: give `label_values` as "hallucinated=...,correct=..." with these '
        'labels, or use none with `columns="label="`.'
    )


def _short(text: object) -> str:
    text = without_settings(" ".join(str(text).split()))
    most = _MAX_VALUE_CHARACTERS
    return text if len(text) <= most else f"{text[:most]}..."


def list_columns(names: Sequence[Any]) -> str:
    return list_some([_short(name) for name in names], 20) or "none"


def useful_columns(columns: Sequence[str], format: RowFormat) -> list[str]:
    """The columns to read, as the file spells them."""
    if format.keep == ("*",):
        return list(columns)
    both = (find_roles(columns, format, answers) for answers in (True, False))
    used = {name for roles in both for found in roles.values() for name in found}
    # One that is not there, or there twice, is said later, beside all that there are.
    used |= {find_column(name, columns) for name in format.keep}
    # Without any, rows could not be counted.
    return [column for column in columns if column in used] or list(columns[:1])


def pick(names: Collection[str], known: tuple[str, ...]) -> list[str]:
    """The normalized names among `names` that are known, in the order of `known`."""
    return [name for name in _plain_names(known) if name in names]


def plain_fields(record: Mapping[Any, Any]) -> dict[str, Any]:
    return {plain_name(name): value for name, value in record.items()}


@lru_cache(maxsize=64)
def _plain_names(columns: tuple[str, ...]) -> dict[str, None]:
    return dict.fromkeys(map(plain_name, columns))


def plain_name(column: object) -> str:
    return _plain_name(str(column)[:_MAX_NAME_CHARACTERS])


@lru_cache(maxsize=4096)
def _plain_name(column: str) -> str:
    return re.sub(r"[\W_]+", "", column).casefold()
