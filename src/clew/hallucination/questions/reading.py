"""Short invented texts with a question that is to be answered from them. Some texts do not have the
answer, and some contradict what is known: knowledge does not help."""

from collections.abc import Callable, Iterator
from typing import Any

from clew.hallucination.questions.wording import (
    Entry,
    choose,
    draw,
    entry,
    number_answers,
    read_json,
)

_PER_CATEGORY = 180
_OR_NOT = " If the text does not say it, answer “not stated”."

# A text, and the values of its questions and answers.
_Scene = tuple[str, dict[str, Any]]


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
