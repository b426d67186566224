"""Which key means which class, and which class a typed word means."""

import itertools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from clew.patterns.review.queue import Question

_KEYS = "123456789"
_NUMBER = re.compile("0|[1-9][0-9]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A class that can be chosen; `key` is its digit, or a number from 10 on where there are more
    classes than digits; `probability` None where the model's best guesses do not hold it."""

    label: str
    key: str
    probability: float | None = None


def list_choices(classes: Sequence[str], question: Question) -> list[Choice]:
    """All classes with their keys.

    Up to nine classes keep their keys from photo to photo: fingers learn them. With more, the
    model's guesses come first. A class whose name is a number has that key: 3 never means "7".
    """
    chances = {guess.label: guess.probability for guess in question.guesses}
    order = list(classes)
    if len(order) > len(_KEYS):
        guessed = [label for label in chances if label in set(order)]
        order = [*guessed, *(label for label in order if label not in chances)]
    keys = _keys(order)
    return [Choice(label=label, key=keys[label], probability=chances.get(label)) for label in order]


def _keys(order: Sequence[str]) -> dict[str, str]:
    own = {label: label for label in order if _NUMBER.fullmatch(label)}
    numbers = itertools.chain(_KEYS, map(str, itertools.count(10)))
    free = (key for key in numbers if key not in own)
    return own | {label: next(free) for label in order if label not in own}


def find_label(classes: Sequence[str], typed: str) -> str | None:
    """The class that was typed: by its name, else by its name but for case and spaces around."""
    if typed in classes:
        return typed
    return next((label for label in classes if fold(label) == fold(typed)), None)


def find_alike(classes: Sequence[str], typed: str, *, most: int = 5) -> list[str]:
    """Classes that begin with what was typed, then those that hold it."""
    wanted = fold(typed)
    begin = [label for label in classes if fold(label).startswith(wanted)]
    hold = [label for label in classes if wanted in fold(label) and label not in begin]
    return [*begin, *hold][:most]


def fold(text: str) -> str:
    """For comparing names: without case, accents in one spelling."""
    return unicodedata.normalize("NFC", text.strip()).casefold()
