"""Languages: where they are official, how they are written, and what their words mean, from the
CLDR data of the package Babel. clew ships none of it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from clew.hallucination.questions.geography import (
    Place,
    country_answers,
    list_countries,
    name_in_question,
    plain,
)
from clew.hallucination.questions.wording import Entry, entry, read_json, slug

# What each country is called in English, the usual name first.
_Names = Mapping[str, list[str]]


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
