"""Numbers, dates and units as values: "one thousand", "1,000" and "1000" become the same text, and
so do "May 4, 1990" and "1990-05-04". Lengths, masses and times can be compared across units.
"""

import math
import re
from decimal import Decimal
from typing import NamedTuple

from clew.hallucination.labels.normalize import LISTS

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
_TENS = LISTS["tens"]
_SMALL = {
    **{word: number for number, word in enumerate(LISTS["small_numbers"])},
    **{word: 10 * number for number, word in enumerate(_TENS, 2)},
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ORDINALS = {
    **{"first": 1, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12},
    **{
        f"{word}th": number
        for word, number in _SMALL.items()
        if number in (4, 6, 7, 10, 11) or 13 <= number <= 19
    },
    **{f"{word[:-1]}ieth": 10 * number for number, word in enumerate(_TENS, 2)},
}
# "Second" alone is a unit of time as well.
_LAST_ORDINALS = {**_ORDINALS, "second": 2}

_MONTH = rf"(?P<month>{'|'.join(rf'{m[:3]}(?:{m[3:]})?' for m in _MONTHS)}|Sept)\b\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?<![\d.-]){_YEAR}[-/.](?P<number>\d{{1,2}})[-/.](?P<day>\d{{1,2}})(?![\d-])",
        rf"\b{_DAY}(?:\s+of)?[\s-]+{_MONTH}(?:,?[\s-]+{_YEAR})?\b",
        rf"\b{_MONTH}\s+(?:the\s+)?{_DAY}(?!\d)(?:,?\s+(?:of\s+)?{_YEAR})?(?![\d%])",
        rf"\b{_MONTH},?\s+(?:of\s+)?{_YEAR}\b",
    )
)
# Of three numbers, the first is the day after points, and the month after slashes.
_NUMERIC_DATE = re.compile(r"(?<![\d.])(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?!\.?\d)")

_WORD = "|".join(sorted({*_SMALL, *_SCALES, "hundred", "dozen"}, key=len, reverse=True))
_NUMBER_WORDS = re.compile(
    rf"(?<![\w'’-])(?:an?\s+(?=hundred\b|thousand\b|million\b|billion\b|trillion\b|dozen\b))?"
    rf"(?:{_WORD})(?:(?:\s+and\s+|\s+|-)(?:{_WORD}))*(?![\w’'])",
    re.IGNORECASE,
)
_ORDINAL_WORDS = re.compile(
    rf"(?<![\w-])(?:(?P<tens>{'|'.join(_TENS)})[\s-](?P<last>{'|'.join(_LAST_ORDINALS)})"
    rf"|(?P<whole>{'|'.join(_ORDINALS)}))\b",
    re.IGNORECASE,
)
# "One" as a pronoun.
_PRONOUN_AFTER = re.compile(r"\s+(?:of|who|which|that|can|should|another|day)\b", re.IGNORECASE)
_PRONOUN_BEFORE = re.compile(
    r"\b(?:the|this|that|no|any|every|each|which|another|some)\s+$", re.IGNORECASE
)
_LONGEST_BEFORE = 16
_DIGIT = re.compile(r"\d")
# Not the hyphen of "1914-1918", of "COVID-19" or before a list's item.
_SIGN = re.compile(r"(?<![^\s=(])(?:[-−]|negative )(?=\d)", re.IGNORECASE)
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:[,\u00a0\u202f' ]\d{3})+(?![\d,])(?=\D|$)")
_SCALED = re.compile(
    rf"(?<![\w.])(\d+(?:\.\d+)?)(?:\s*-\s*|\s*)({'|'.join(_SCALES)}|hundred)\b", re.IGNORECASE
)
_DECIMAL = re.compile(r"(?<![\d.])(\d+\.\d+)(?!\d|\.\d)")
_MONEY = re.compile(r"(?:US|U\.S\.)?([$€£¥])\s?(\d[\d.,]*\d|\d)")
_CURRENCIES = {"$": "dollars", "€": "euros", "£": "pounds", "¥": "yen"}
_PERCENT = re.compile(r"(?<=\d)\s*(?:%|per\s?cent\b|percent\b)", re.IGNORECASE)


_UNITS = LISTS["units"]
_UNIT = re.compile(
    r"(?<=\d)[\s-]*(?:square\s)?(?:"
    + "|".join(f"(?P<{name}>{unit['names']})" for name, unit in _UNITS.items())
    + r")(?![\w°])(?!²|\^2)",
    re.IGNORECASE,
)
_QUANTITY = re.compile(
    rf"(?<![\w.])((?:minus )?\d+(?:\.\d+)?)(?: ({'|'.join(_UNITS)}))?(?![\w.]*\d)"
)
# The same length in miles and in kilometers, as people round it.
_ROUNDING = 0.01


_DATE = re.compile(rf"\d{{4}} (?:{'|'.join(_MONTHS)})(?: day\d+)?\b")
MONTHS = frozenset(month.lower() for month in _MONTHS)


def is_date(text: str) -> bool:
    """Whether a canonical text begins with a date, more exact than a year."""
    return bool(_DATE.match(text))


class Quantity(NamedTuple):
    """A number with a unit, "" if it has none."""

    value: float
    unit: str

    def equals(self, other: "Quantity") -> bool:
        """Whether both are the same amount; the number alone is compared if one has no unit."""
        if self.unit == other.unit or not self.unit or not other.unit:
            return self.value == other.value
        mine, theirs = _UNITS[self.unit], _UNITS[other.unit]
        if mine["kind"] != theirs["kind"]:
            return False
        base, wanted = (
            one.value * unit["size"] + unit.get("offset", 0.0)
            for one, unit in ((self, mine), (other, theirs))
        )
        return math.isclose(base, wanted, rel_tol=_ROUNDING)


def parse_quantity(text: str) -> Quantity | None:
    """The quantity that a canonical text consists of."""
    found = _QUANTITY.fullmatch(text.strip(" ."))
    return _read_quantity(found) if found else None


def _read_quantity(found: re.Match[str]) -> Quantity:
    return Quantity(float(found[1].replace("minus ", "-")), found[2] or "")


def find_quantities(text: str) -> list[tuple[int, int, Quantity]]:
    """(start, end, quantity) of those in a canonical text that have a unit."""
    return [
        (found.start(), found.end(), _read_quantity(found))
        for found in _QUANTITY.finditer(text)
        if found[2]
    ]


def canonical_values(text: str, *, day_first: bool = False) -> str:
    """The text with numbers in digits, dates as "1990 May day4", and units by one name each.

    The year comes first, so that "May 1990" is found in "May 4, 1990", and "4" is not, since a day
    is another word. `day_first` is how to read 4/5/1990.
    """
    if not _DIGIT.search(text):
        return _spell_out(text)
    for pattern in _DATES:
        text = pattern.sub(_plain_date, text)
    text = _NUMERIC_DATE.sub(lambda found: _plain_numeric_date(found, day_first), text)
    text = _GROUPED.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    text = _spell_out(text)
    text = _SCALED.sub(_multiply, text)
    text = _DECIMAL.sub(lambda found: found[1].rstrip("0").rstrip("."), text)
    text = _MONEY.sub(lambda found: f"{found[2]} {_CURRENCIES[found[1]]}", text)
    return _name_units(text)


def _spell_out(text: str) -> str:
    """With numbers in digits, where they were words, and signs in words."""
    plain = _NUMBER_WORDS.sub(_read_words, _ORDINAL_WORDS.sub(_read_ordinal, text))
    plain = _SIGN.sub("minus ", plain)
    return plain if plain is text or plain == text else _name_units(plain)


def _name_units(text: str) -> str:
    text = _PERCENT.sub(" percent", text)
    return _UNIT.sub(
        lambda found: f" {'square ' * ('square ' in found[0].lower())}{found.lastgroup}", text
    )


def _plain_date(found: re.Match[str]) -> str:
    parts = found.groupdict()
    if parts.get("number"):
        if not 1 <= int(parts["number"]) <= 12:
            return found[0]
        month = _MONTHS[int(parts["number"]) - 1]
    else:
        if parts["month"] in ("may", "march") and not parts.get("year"):
            return found[0]  # "it may 5 times"
        month = next(m for m in _MONTHS if m[:3].lower() == parts["month"][:3].lower())
    day = int(parts["day"]) if parts.get("day") else None
    if day is not None and not 1 <= day <= 31:
        return found[0]
    year = f"{parts['year']} " if parts.get("year") else ""
    return f"{year}{month}" + (f" day{day}" if day else "")


def _plain_numeric_date(found: re.Match[str], day_first: bool) -> str:
    first, second, year = int(found[1]), int(found[3]), found[4]
    is_day_first = found[2] != "/" or day_first or first > 12
    day, month = (first, second) if is_day_first and second <= 12 else (second, first)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return found[0]
    return f"{year} {_MONTHS[month - 1]} day{day}"


def _multiply(found: re.Match[str]) -> str:
    scale = _SCALES.get(found[2].lower(), 100)
    return _digits(Decimal(found[1]) * scale)


def _digits(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _read_words(found: re.Match[str]) -> str:
    words = re.findall(r"[a-z]+", found[0].lower())
    if words == ["one"] and _is_pronoun(found):
        return found[0]
    total, part = 0, 0
    for word in words:
        if word in ("a", "an", "and"):
            continue
        if word in ("hundred", "dozen"):
            part = (part or 1) * (100 if word == "hundred" else 12)
        elif word in _SCALES:
            if found.start() and found.string[: found.start()].rstrip()[-1:].isdigit():
                return found[0]  # "3.5 million" is read with its digits
            total, part = total + (part or 1) * _SCALES[word], 0
        elif part % 100 and not (part % 10 == 0 and part % 100 >= 20 and _SMALL[word] < 10):
            return found[0]  # "nineteen ninety", "one two three": no single number
        else:
            part += _SMALL[word]
    if words[0] == "hundred" and found.start() and found.string[found.start() - 2].isdigit():
        return found[0]
    return str(total + part)


def _is_pronoun(found: re.Match[str]) -> bool:
    start = max(0, found.start() - _LONGEST_BEFORE)
    after = _PRONOUN_AFTER.match(found.string, found.end())
    return bool(after or _PRONOUN_BEFORE.search(found.string, start, found.start()))


def _read_ordinal(found: re.Match[str]) -> str:
    if found["tens"]:
        number = _SMALL[found["tens"].lower()] + _LAST_ORDINALS[found["last"].lower()]
    else:
        number = _ORDINALS[found["whole"].lower()]
    ending = (
        "th" if 11 <= number % 100 <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"
