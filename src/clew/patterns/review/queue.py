"""What is asked: photos with the model's guesses, in the order in which they teach the most."""

from dataclasses import dataclass
from pathlib import Path

from clew.patterns.identification.results import Identification, Identified
from clew.patterns.review.notes import Notes


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """A class, and how likely the model finds it (0 to 1)."""

    label: str
    probability: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One photo to decide on; `guesses` are the model's, the likeliest first."""

    path: Path
    name: str
    guesses: tuple[Guess, ...]

    @property
    def best(self) -> Guess:
        return self.guesses[0]


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The questions, and what is not asked: decided or skipped before, gone, faulty, or sure.

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
    """The doubtful photos, the least sure first. Nothing that the notes know is asked again.

    `every` asks about sure photos too, and about those that were skipped.
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
    guesses = tuple(Guess(label=label, probability=value) for label, value in photo.best)
    return Question(path=photo.path, name=photo.name, guesses=guesses)
