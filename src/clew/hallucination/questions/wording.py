"""Word the questions of a built-in set from entries. Every choice follows from a hash, so that a
set is the same on every machine and in every version of Python."""

import csv
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from clew.hallucination.questions.records import Question

T = TypeVar("T")
_DATA = Path(__file__).parent / "data"
_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


class Entry(NamedTuple):
    """What a question asks, before it is worded: `values` fill the category's templates."""

    category: str
    key: str
    answers: tuple[str, ...]
    values: Mapping[str, Any]
    context: str | None = None

    @property
    def id(self) -> str:
        return f"{self.category}-{self.key}"


Asked = TypeVar("Asked", Entry, Question)


def entry(
    category: str, key: object, answers: Iterable[str], context: str | None = None, **values: object
) -> Entry:
    return Entry(category, str(key), tuple(dict.fromkeys(answers)), values, context)


def word_questions(
    templates: Mapping[str, Sequence[str]], entries: Iterable[Entry], most: int | None = None
) -> list[Question]:
    """The questions of a set, shuffled: ordered by a hash of the id, so any prefix is a fair mix.
    Each is asked in one of the ways of its category; of a category, `most` are kept."""
    by_category: dict[str, list[Question]] = defaultdict(list)
    for one in entries:
        text = choose(templates.get(one.category, ("{question}",)), "template", one.id)
        question = Question(
            id=one.id,
            question=text.format(**one.values),
            answers=one.answers,
            category=one.category,
            context=one.context,
        )
        by_category[one.category].append(question)
    return shuffled([question for of in by_category.values() for question in shuffled(of)[:most]])


def shuffled(items: Iterable[Asked]) -> list[Asked]:
    """In the order of a hash of their ids."""
    return sorted(items, key=lambda one: hashlib.sha256(one.id.encode()).digest())


def choose(options: Sequence[T], *key: object) -> T:
    """One of the options; always the same one for a key."""
    return options[_hashed(*key) % len(options)]


def draw(options: Iterable[T], count: int, *key: object) -> list[T]:
    """`count` different options in a fixed order that looks random, or all if there are fewer."""
    return sorted(options, key=lambda option: _hashed(*key, option))[:count]


def _hashed(*key: object) -> int:
    text = "\x1f".join(map(str, key))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def number_answers(number: int) -> tuple[str, ...]:
    """ "1200", "1,200" and "one thousand two hundred" are the same number."""
    return str(number), f"{number:,}", spell(number)


def spell(number: int) -> str:
    """An integer from 0 to 9,999 in English words: "forty-two"."""
    if number < 20:
        return _UNITS[number]
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = f" {spell(number % size)}" if number % size else ""
            return f"{spell(number // size)} {name}{rest}"
    unit = f"-{_UNITS[number % 10]}" if number % 10 else ""
    return f"{_TENS[number // 10]}{unit}"


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file of the package."""
    with (_DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def read_json(name: str) -> Any:
    return json.loads((_DATA / f"{name}.json").read_text(encoding="utf-8"))


def slug(text: str) -> str:
    """The text as a part of an id."""
    return text.lower().replace(" ", "-")


def alternatives(cell: str) -> list[str]:
    """The texts of a table's cell."""
    return cell.split("|") if cell else []
