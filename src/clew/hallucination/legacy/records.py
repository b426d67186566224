"""One record of an old file: validated, with missing fields recovered, and its ids."""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clew.base.errors import InputError
from clew.base.texts import shortened

# Tokens that an answer's text omits at its end: <|im_end|>, </s>, <eos>, [SEP], ...
_SPECIAL_TOKEN = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]")
_QUESTION_MARK = re.compile(r"(?<!\w)Q:")
_ANSWER_MARK = re.compile(r"\sA:")
# Positions of edges are stored in 16 bits.
MAX_TOKENS = 1 << 16
# Far more than any model has, and than any answer: they bound the time that a record takes.
MAX_LAYERS = 1000
_MAX_TEXT = 1 << 22
_MAX_NOTES = 100
_MAX_STOPS = 1000
_SURROGATE = re.compile("[\ud800-\udfff]")


class MalformedRecordError(InputError):
    """A record cannot be converted; the message is the reason and follows the record's name."""


@dataclass(frozen=True, kw_only=True)
class LegacyTrace:
    """A trace as stored in a legacy file, with consistent shapes."""

    hidden_states: Sequence[Float[np.ndarray, "tokens dim"]]
    attentions: Sequence[Float[np.ndarray, "heads tokens tokens"]]
    tokens: Int[np.ndarray, " tokens"]
    tokens_decoded: list[str] | None
    question: str | None
    accepted_answers: list[str]
    answer: str | None
    prompt_length: int | None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Layers, dim and heads."""
        first = self.hidden_states[0]
        return len(self.hidden_states), first.shape[1], self.attentions[0].shape[0]


def parse_trace(record: Any) -> LegacyTrace:
    """Raises MalformedRecordError if a required field is missing or has the wrong shape."""
    if not isinstance(record, Mapping):
        raise MalformedRecordError(f"it is a {type(record).__name__}, not a dict")
    tokens = _read_tokens(record)
    decoded = _read_texts(record, "tokens_decoded")
    if decoded is not None and len(decoded) != len(tokens):
        raise MalformedRecordError(
            f"tokens_decoded has {len(decoded)} strings for {len(tokens)} tokens"
        )
    hidden, attentions = read_layers(record, "hidden_states"), read_layers(record, "attentions")
    _check_layers(hidden, attentions, len(tokens))
    answer = read_text(record, "generated_answer_clean")
    prompt_length = _read_prompt_length(record, decoded, answer, len(tokens))
    return LegacyTrace(
        hidden_states=hidden,
        attentions=attentions,
        tokens=tokens,
        tokens_decoded=decoded,
        question=read_text(record, "question") or recover_question(decoded, prompt_length),
        accepted_answers=_read_accepted(record),
        answer=answer,
        prompt_length=prompt_length,
    )


def recover_question(decoded: Sequence[str] | None, prompt_length: int | None) -> str | None:
    """The text between the last "Q:" of the prompt and the "A:" at its end.

    Where the prompt ends is not always known; then a text with several "Q:" (examples before
    the question, or an answer that runs on) gives None rather than a wrong question.
    """
    if decoded is None:
        return None
    text = "".join(decoded[:prompt_length])
    if prompt_length is None and len(_QUESTION_MARK.findall(text)) != 1:
        return None
    start = max((match.end() for match in _QUESTION_MARK.finditer(text)), default=len(text))
    rest = text[start:].strip()
    if prompt_length is None:
        match = _ANSWER_MARK.search(rest, 1)
        return rest[: match.start()].rstrip() if match else None
    before = rest.removesuffix("A:")
    asked = before.rstrip()
    return asked if asked and asked != before else None


def find_prompt_length(decoded: Sequence[str], answer: str) -> int | None:
    """Where the answer starts: it is the tail of the tokens without trailing special tokens,
    matched exactly or else up to surrounding whitespace.
    """
    stop = len(decoded)
    stops = [stop]
    while stop and len(stops) < _MAX_STOPS and _SPECIAL_TOKEN.fullmatch(decoded[stop - 1].strip()):
        stop -= 1
        stops.append(stop)
    text, starts = "".join(decoded), [0, *accumulate(map(len, decoded))]
    for find in (_find_tail, _find_stripped_tail):
        for stop in stops:
            start = find(text, starts, starts[stop], answer)
            if start is not None:
                return start
    return None


def _find_tail(text: str, starts: Sequence[int], end: int, answer: str) -> int | None:
    """The first token from which the text up to `end` is the answer, given where tokens start."""
    first = end - len(answer)
    if first < 0 or not text.endswith(answer, 0, end):
        return None
    token = bisect_left(starts, first)
    return token if starts[token] == first else None


def _find_stripped_tail(text: str, starts: Sequence[int], end: int, answer: str) -> int | None:
    """As `_find_tail`, ignoring whitespace around the answer."""
    plain = answer.strip()
    first = len(text[:end].rstrip()) - len(plain)
    if first < 0 or not text.startswith(plain, first):
        return None
    token = bisect_left(starts, len(text[:first].rstrip()))
    return token if starts[token] <= (first if plain else end) else None


def read_text(record: Mapping[str, Any], name: str) -> str | None:
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not _is_unicode(value):
        raise MalformedRecordError(f"{name} is {shortened(value)}, not text")
    return str(value)


def read_layers(record: Mapping[str, Any], name: str) -> list[np.ndarray]:
    """A list of float arrays, one per layer; a stacked array is accepted too."""
    value = record.get(name)
    if value is None:
        raise MalformedRecordError(f"it has no {name}")
    if not is_list(value) or not 0 < len(value) <= MAX_LAYERS:
        count = f" of {len(value):,}" if is_list(value) else ""
        raise MalformedRecordError(
            f"{name} is not a list with one array per layer ({type(value).__name__}{count})"
        )
    for layer, array in enumerate(value):
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            kind = getattr(array, "dtype", type(array).__name__)
            raise MalformedRecordError(f"{name} of layer {layer} is {kind}, not an array of floats")
    return [np.asarray(array) for array in value]


def _check_layers(
    hidden: Sequence[np.ndarray], attentions: Sequence[np.ndarray], tokens: int
) -> None:
    if len(hidden) != len(attentions):
        raise MalformedRecordError(
            f"hidden_states has {len(hidden)} layers, attentions has {len(attentions)}"
        )
    dim = hidden[0].shape[-1] if hidden[0].ndim else 0
    heads = attentions[0].shape[0] if attentions[0].ndim else 0
    _check_shapes("hidden_states", hidden, (tokens, dim))
    _check_shapes("attentions", attentions, (heads, tokens, tokens))


def _check_shapes(name: str, arrays: Sequence[np.ndarray], wanted: tuple[int, ...]) -> None:
    for layer, array in enumerate(arrays):
        if array.shape != wanted or 0 in wanted:
            raise MalformedRecordError(
                f"{name} of layer {layer} has shape {list(array.shape)}, expected {list(wanted)}"
            )


def _read_tokens(record: Mapping[str, Any]) -> Int[np.ndarray, " tokens"]:
    value = record.get("tokens")
    if value is None:
        raise MalformedRecordError("it has no tokens")
    whole = is_list(value) and all(is_whole(token) for token in value)
    tokens = np.asarray(value) if whole else np.zeros(())
    if not whole or tokens.dtype.kind not in "iu":
        raise MalformedRecordError("tokens is not a list of integers")
    if not 0 < len(tokens) < MAX_TOKENS:
        raise MalformedRecordError(
            f"it has {len(tokens)} tokens; clew supports 1 to {MAX_TOKENS - 1}"
        )
    limits = np.iinfo(np.int32)
    if tokens.min() < limits.min or tokens.max() > limits.max:
        raise MalformedRecordError(f"token id {tokens.max()} is too large")
    return tokens.astype(np.int32)


def _read_texts(record: Mapping[str, Any], name: str) -> list[str] | None:
    value = record.get(name)
    if value is None:
        return None
    texts = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    if not texts or not all(_is_unicode(item) for item in value):
        raise MalformedRecordError(f"{name} is not a list of strings")
    if sum(map(len, value)) > _MAX_TEXT:
        raise MalformedRecordError(f"{name} has more than {_MAX_TEXT:,} characters")
    return [str(item) for item in value]


def _read_accepted(record: Mapping[str, Any]) -> list[str]:
    """Read the accepted answers: older files hold them in `answer`, clew's own pickles in
    `accepted_answers`."""
    name = "accepted_answers" if "accepted_answers" in record else "answer"
    if isinstance(record.get(name), str):
        return [read_text(record, name) or ""]
    return _read_texts(record, name) or []


def _read_prompt_length(
    record: Mapping[str, Any], decoded: list[str] | None, answer: str | None, tokens: int
) -> int | None:
    value = record.get("prompt_length")
    if value is None:
        return find_prompt_length(decoded, answer) if decoded and answer is not None else None
    if not is_whole(value) or not 0 <= value <= tokens:
        raise MalformedRecordError(
            f"prompt_length is {shortened(value)}, but it has {tokens} tokens"
        )
    return int(value)


def to_float32(array: np.ndarray) -> np.ndarray:
    """A copy in float32; values beyond its range become infinite, without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float32)


def add_note(notes: set[str], text: str) -> None:
    """Add what a reader of the store should know; a file cannot fill the manifest with notes."""
    if len(notes) < _MAX_NOTES:
        notes.add(text)


def is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_unicode(text: str) -> bool:
    """Whether the text can be stored. A lone surrogate is valid in a Python string, but not in
    UTF-8."""
    return _SURROGATE.search(text) is None


@dataclass(frozen=True, kw_only=True)
class RowIds:
    """The four ids of every row of a store."""

    global_example_id: int
    example_id: int
    batch_number: int
    question_id: str


def assign_ids(samples: Sequence[Any], batch_number: int, rows_per_shard: int) -> list[RowIds]:
    """Ids that let a row be found by its `global_example_id` alone. The ids in the records are kept
    if all are present, unique, and where a store with `rows_per_shard` rows per batch looks for
    them; otherwise they are renumbered.
    """
    first = batch_number * rows_per_shard
    examples = _read_ids(samples, "example_id", 0, rows_per_shard) or range(len(samples))
    given = _read_ids(samples, "global_example_id", first, rows_per_shard)
    numbers = given or [first + example for example in examples]
    return [
        RowIds(
            global_example_id=number,
            example_id=example,
            batch_number=batch_number,
            question_id=_read_question_id(sample) or nameless_id(number),
        )
        for sample, number, example in zip(samples, numbers, examples, strict=True)
    ]


def nameless_id(global_example_id: int) -> str:
    """Splits and labels are keyed by the question's id, so a record without one gets its own."""
    return f"record_{global_example_id}"


def read_label(value: Any) -> float | None:
    """A label as a number, given as a number or a tensor with one element."""
    if value is None:
        return None
    plain = isinstance(value, int | float | np.generic | np.ndarray)
    array = np.asarray(value if plain else "")
    if array.dtype.kind not in "biuf" or array.size != 1:
        raise MalformedRecordError(f"its label is {shortened(value)}, not a number")
    return float(array.reshape(()))


def _read_ids(samples: Sequence[Any], name: str, first: int, count: int) -> list[int] | None:
    values: list[Any] = [s.get(name) if isinstance(s, Mapping) else None for s in samples]
    if not all(is_whole(value) and first <= value < first + count for value in values):
        return None
    return [int(value) for value in values] if len(set(values)) == len(values) else None


def _read_question_id(sample: Any) -> str | None:
    value = sample.get("question_id") if isinstance(sample, Mapping) else None
    if isinstance(value, str):
        # A lone surrogate cannot be stored; a bad id must not lose the whole record.
        return value.encode("utf-8", "backslashreplace").decode()
    return str(value) if is_whole(value) else None
