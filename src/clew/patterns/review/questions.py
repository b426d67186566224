"""What is asked, and how it is answered: photos with the model's guesses, the most informative
first; which key or typed word means which class."""

import itertools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clew.patterns.identification.results import Identification, Identified
from clew.patterns.review.notes import Notes

_KEYS = "123456789"
_NUMBER = re.compile("0|[1-9][0-9]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """A class, and the model's probability for it (0 to 1)."""

    label: str
    probability: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One photo to decide on; `guesses` are the model's, the most likely first. If a person has
    given the photo another class while the model was served, that `correction` is the first."""

    path: Path
    name: str
    guesses: tuple[Guess, ...]
    correction: str | None = None

    @property
    def best(self) -> Guess:
        return self.guesses[0]

    @property
    def title(self) -> str:
        """The name, and what is known besides the guesses."""
        return f"{self.name} (corrected to {self.correction})" if self.correction else self.name


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The questions to ask, and the photos that are not asked about: decided or skipped before,
    missing, unreadable, or confident.

    `source` is the file that they come from; `gone` and `faulty` are names.
    """

    questions: tuple[Question, ...]
    source: Path
    decided: int = 0
    skipped: int = 0
    gone: tuple[str, ...] = ()
    faulty: tuple[str, ...] = ()
    sure: int = 0


def make_queue(identification: Identification, notes: Notes, *, every: bool = False) -> Queue:
    """The doubtful photos, the least confident first. Nothing that was decided before is asked
    again.

    `every` also asks about confident photos, and about those that were skipped.
    """
    asked: list[Question] = []
    gone: list[str] = []
    counts = {True: 0, False: 0}  # was it skipped?
    usable = [photo for photo in identification.photos if photo.fault is None and photo.best]
    wanted = [photo for photo in usable if every or photo.doubtful]
    for photo in wanted:
        try:
            known = notes.find(photo.path)
        except OSError:
            gone.append(photo.name)
            continue
        if known is None or (every and known.is_skip):
            asked.append(_question(photo))
        else:
            counts[known.is_skip] += 1
    return Queue(
        questions=tuple(sorted(asked, key=lambda question: question.best.probability)),
        source=identification.file,
        decided=counts[False],
        skipped=counts[True],
        gone=tuple(gone),
        faulty=tuple(photo.name for photo in identification.photos if photo.fault is not None),
        sure=len(usable) - len(wanted),
    )


def _question(photo: Identified) -> Question:
    chances = dict(photo.best)
    if photo.correction is not None:
        chances = {photo.correction: chances.get(photo.correction, 0.0)} | chances
    guesses = tuple(Guess(label=label, probability=value) for label, value in chances.items())
    return Question(path=photo.path, name=photo.name, guesses=guesses, correction=photo.correction)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A class that can be chosen; `key` is its digit, or a number from 10 on if there are more
    classes than digits; `probability` None if it is not among the model's best guesses."""

    label: str
    key: str
    probability: float | None = None


def list_choices(classes: Sequence[str], question: Question) -> list[Choice]:
    """All classes with their keys.

    Up to nine classes keep their keys from photo to photo, so that fingers learn them. With more,
    the model's guesses come first. A class whose name is a number has that key: 3 never means "7".
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
    """The class that was typed: by its exact name, else ignoring case and surrounding spaces."""
    if typed in classes:
        return typed
    return next((label for label in classes if fold(label) == fold(typed)), None)


def find_alike(classes: Sequence[str], typed: str, *, most: int = 5) -> list[str]:
    """Classes that start with what was typed, then those that contain it."""
    wanted = fold(typed)
    begin = [label for label in classes if fold(label).startswith(wanted)]
    hold = [label for label in classes if wanted in fold(label) and label not in begin]
    return [*begin, *hold][:most]


def fold(text: str) -> str:
    """For comparing names: without case, accents in one encoding."""
    return unicodedata.normalize("NFC", text.strip()).casefold()
