"""A review: which photos are asked about, which key or word means which class, and the answers,
each applied at once."""

import itertools
import os
import re
import threading
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from clew.base.errors import Call, InputError
from clew.base.texts import for_terminal
from clew.patterns.identification.results import (
    IDENTIFIED_FILE,
    Identification,
    Identified,
    find_identified,
    find_newest,
    read_identified,
)
from clew.patterns.library.choose import Chosen, find_classes_folder
from clew.patterns.library.folders import read_results
from clew.patterns.library.pattern_set import MIN_PHOTOS
from clew.patterns.library.placing import check_class_name, only_one
from clew.patterns.photos.photo import natural_order
from clew.patterns.review.journal import (
    Action,
    Decision,
    DecisionJournal,
    Decisions,
    LabeledFolder,
    digest_file,
)

JOURNAL = "review.jsonl"
_KEYS = "123456789"
_NUMBER = re.compile("0|[1-9][0-9]*")


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The questions to ask, and the photos that are not asked about: decided or skipped before,
    missing, unreadable, or confident.

    `source` is the file that they come from; `gone` and `faulty` are names.
    """

    questions: tuple[Identified, ...]
    source: Path
    decided: int = 0
    skipped: int = 0
    gone: tuple[str, ...] = ()
    faulty: tuple[str, ...] = ()
    sure: int = 0


def make_queue(
    identification: Identification, journal: Iterable[Decision], *, every: bool = False
) -> Queue:
    """The doubtful photos, the least confident first. Nothing that was decided before is asked
    again.

    `every` also asks about confident photos, and about those that were skipped.
    """
    asked: list[Identified] = []
    gone: list[str] = []
    counts = Counter[bool]()  # was it skipped?
    decided = _Decided(journal)
    usable = [photo for photo in identification.photos if photo.fault is None and photo.best]
    wanted = [photo for photo in usable if every or photo.doubtful]
    for photo in wanted:
        try:
            known = decided.find(photo.path)
        except OSError:
            gone.append(photo.name)
            continue
        is_skipped = known is not None and known.action == "skipped"
        if known is None or (every and is_skipped):
            asked.append(_with_correction_first(photo))
        else:
            counts[is_skipped] += 1
    return Queue(
        questions=tuple(sorted(asked, key=lambda photo: photo.best[0][1])),
        source=identification.file,
        decided=counts[False],
        skipped=counts[True],
        gone=tuple(gone),
        faulty=tuple(photo.name for photo in identification.photos if photo.fault is not None),
        sure=len(usable) - len(wanted),
    )


class _Decided:
    """The photos that a person has decided about, under any name."""

    def __init__(self, journal: Iterable[Decision]) -> None:
        self._by_path: dict[str, Decision] = {}
        self._by_bytes: dict[int, list[Decision]] = defaultdict(list)
        for decision in journal:
            self._by_path[decision.source] = decision
            self._by_bytes[decision.bytes].append(decision)

    def find(self, path: Path) -> Decision | None:
        """Raises OSError if the photo is missing and no review has moved it. The file is read only
        if a photo of the same length was decided on."""
        known = self._by_path.get(str(path))
        if known and known.moves and not os.path.lexists(path):
            return known
        state = path.stat()
        if known and (known.bytes, known.modified_ns) == (state.st_size, state.st_mtime_ns):
            return known
        alike = self._by_bytes.get(state.st_size)
        if not alike:
            return None
        digest = digest_file(path)
        return next((one for one in reversed(alike) if one.digest == digest), None)


def _with_correction_first(photo: Identified) -> Identified:
    """If a person has given the photo another class while the model was served, that is the first
    guess."""
    if photo.correction is None:
        return photo
    chances = dict(photo.best)
    first = {photo.correction: chances.get(photo.correction, 0.0)}
    return replace(photo, best=tuple((first | chances).items()))


def title_of(photo: Identified) -> str:
    """The name, and what is known besides the guesses."""
    return f"{photo.name} (corrected to {photo.correction})" if photo.correction else photo.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A class that can be chosen; `key` is its digit, or a number from 10 on if there are more
    classes than digits; `probability` None if it is not among the model's best guesses."""

    label: str
    key: str
    probability: float | None = None


def list_choices(classes: Sequence[str], question: Identified) -> list[Choice]:
    """All classes with their keys.

    Up to nine classes keep their keys from photo to photo, so that fingers learn them. With more,
    the model's guesses come first. A class whose name is a number has that key: 3 never means "7".
    """
    chances = dict(question.best)
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


def describe_new_classes(classes: Mapping[str, int]) -> str:
    """The new classes, and whether they can be trained on; "" if there are none."""
    if not classes:
        return ""
    shown = ", ".join(f"{for_terminal(label)} ({count:,})" for label, count in classes.items())
    few = min(classes.values()) < MIN_PHOTOS
    need = f" Each class requires at least {MIN_PHOTOS} photos for training." if few else ""
    return f"New classes, with their photos: {shown}.{need}"


def name_some(names: tuple[str, ...], *, most: int = 5) -> str:
    """The first few by name, the others by number."""
    shown = ", ".join(f'"{for_terminal(name)}"' for name in names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


class Review:
    """The questions of a queue, in order, for the terminal and the page.

    `next_call` is what to do afterwards, `again_call` asks what is left. Threads that share it hold
    `lock`.
    """

    def __init__(
        self,
        queue: Queue,
        decisions: Decisions,
        classes: Sequence[str],
        *,
        moves: bool = False,
        next_call: Call,
        again_call: Call,
    ) -> None:
        self.queue, self.classes, self.moves = queue, list(classes), moves
        self.next_call, self.again_call = next_call, again_call
        self.lock = threading.RLock()
        self.decisions, self._known = decisions, set(classes)
        # The decisions of this review, the last at the end; None for a photo that was missing.
        self._answers: list[Decision | None] = []

    @property
    def place(self) -> int:
        """The number of answered questions, which is the index of the open one."""
        return len(self._answers)

    @property
    def current(self) -> Identified | None:
        """The question that is open; None when all are answered."""
        return self.queue.questions[self.place] if self.place < len(self.queue.questions) else None

    @property
    def folder(self) -> str:
        """Where the photos go: the folder with one folder per class."""
        return str(self.decisions.root)

    def counts(self) -> Counter[str]:
        """How many this review approved, corrected and skipped."""
        return Counter(answer.action for answer in self._answers if answer is not None)

    def new_classes(self) -> dict[str, int]:
        """Classes that got their first photos from this review, with their numbers."""
        given = Counter(answer.label for answer in self._answers if answer is not None)
        return {one: given[one] for one in self.classes if given[one] and one not in self._known}

    def describe(self, decision: Decision) -> str:
        """A sentence about the result of an answer."""
        where = f"{self.folder}/{decision.target}"
        if not decision.is_new:
            away = "; the original was deleted" if decision.moves else ""
            return f"{decision.label}: already there, as {where}{away}"
        if decision.moves:
            return f"{decision.label}: moved to {where}"
        but = " (the original could not be deleted)" if self.moves else ""
        return f"{decision.label}: copied to {where}{but}"

    def choices(self) -> list[Choice]:
        """The classes with their keys, for the open question."""
        return list_choices(self.classes, self._open_question())

    def approve(self) -> Decision:
        """Approve the model's best guess. Raises InputError if the photo is missing."""
        return self._answer("approved", self._open_question().best[0][0])

    def correct(self, label: str) -> Decision:
        """Put the photo into another class, possibly a new one. Raises InputError for an invalid
        name."""
        label = find_label(self.classes, label) or check_class_name(label)
        is_guess = label == self._open_question().best[0][0]
        decision = self._answer("approved" if is_guess else "corrected", label)
        if label not in self.classes:
            self.classes.append(label)
        return decision

    def skip(self) -> None:
        """Skip the photo: it stays where it is and is not asked about again."""
        question = self._open_question()
        try:
            decision = self._decision(question, "skipped")
        except OSError:
            self._answers.append(None)  # there is nothing left to note
        else:
            self._answers.append(self.decisions.note(decision))

    def undo(self) -> Identified:
        """Undo the last answer and ask the question again.

        Raises InputError when there is none, or when the photo cannot be restored.
        """
        if not self._answers:
            raise InputError("there is nothing to undo: no photo has been reviewed yet.")
        answer = self._answers[-1]
        if answer is not None:
            self.decisions.undo(answer)
        self._answers.pop()
        self._forget_unused_classes()
        return self.queue.questions[self.place]

    def _forget_unused_classes(self) -> None:
        """Forget new classes whose only answers were undone, so that they are not offered again."""
        used = {answer.label for answer in self._answers if answer is not None}
        self.classes = [one for one in self.classes if one in self._known or one in used]

    def _open_question(self) -> Identified:
        if self.current is None:
            raise InputError("all photos have been reviewed.")
        return self.current

    def _answer(self, action: Action, label: str) -> Decision:
        question = self._open_question()
        try:
            decision = self._decision(question, action, label)
        except OSError as error:
            raise InputError(
                f'the photo "{question.path}" can no longer be read ({error.strerror}): restore '
                "it, or skip it."
            ) from None
        decision = self.decisions.carry_out(decision)
        self._answers.append(decision)
        return decision

    def _decision(self, question: Identified, action: Action, label: str | None = None) -> Decision:
        state = question.path.stat()
        guess, probability = question.best[0]
        return Decision(
            action=action,
            source=str(question.path),
            moves=self.moves and label is not None,
            bytes=state.st_size,
            modified_ns=state.st_mtime_ns,
            digest=digest_file(question.path),
            name=question.name,
            label=label,
            guess=guess,
            probability=round(probability, 6),
        )


@dataclass(frozen=True, kw_only=True)
class ReviewConfig:
    """What to review. `identified` is an identified.json or its folder, by default the newest of
    the model or set that still has questions; `data` the folder with one folder per class that
    takes the photos, by default the training folder; `every` also asks about confident predictions,
    and about photos skipped before."""

    identified: Path | None = None
    data: Path | None = None
    every: bool = False
    move: bool = False


@contextmanager
def open_review(chosen: Chosen, config: ReviewConfig | None = None) -> Iterator[Review]:
    """Open the review and lock it against other processes.

    Raises InputError when nothing was identified yet or the folder for the photos is unknown,
    StoreLockedError.
    """
    config = config or ReviewConfig()
    candidates = _find_identified(chosen, config)
    classes = _open_classes(chosen, config)
    message = (
        f'another review of "{chosen.home}" is running: finish that one first (q at the terminal, '
        '"Finish" on the page).'
    )
    with only_one(chosen.home / ".review.lock", message):
        journal = DecisionJournal(chosen.home / JOURNAL)
        decisions = Decisions(journal, classes.folder, classes=classes)
        identification, queue = _choose(candidates, journal, every=config.every)
        yield Review(
            queue,
            decisions,
            _list_classes(identification, chosen, classes),
            moves=config.move,
            next_call=_call_to_train(chosen, config),
            again_call=call_to_review(chosen, config),
        )


def _find_identified(chosen: Chosen, config: ReviewConfig) -> list[Path]:
    """What may be reviewed, the newest first."""
    path = config.identified
    if path is not None and not path.exists():
        raise InputError(
            f'there is no "{path}": give the output folder of "clew patterns identify".'
        )
    if path is not None:
        return [path / IDENTIFIED_FILE if path.is_dir() else path]
    found = find_identified(chosen.home)
    if not found:
        raise InputError(
            "there is nothing to review: no photos have been identified yet. Run ",
            chosen.call_to_identify(),
            " first.",
        )
    return found


def _choose(
    files: list[Path], journal: DecisionJournal, *, every: bool
) -> tuple[Identification, Queue]:
    """The newest that still has questions; if none has, the newest."""
    opened = map(read_identified, files)
    asked = ((one, make_queue(one, journal, every=every)) for one in opened)
    newest = next(asked)
    return next((pair for pair in chain([newest], asked) if pair[1].questions), newest)


def _open_classes(chosen: Chosen, config: ReviewConfig) -> LabeledFolder:
    folder = chosen.classes_folder if config.data is None else find_classes_folder(config.data)
    if folder is None:
        raise InputError(
            f'the folder of photos that "{chosen.model}" was trained on no longer exists: set '
            "`data` to a folder to add the photos to, with one subfolder per class."
        )
    if not folder.is_dir():
        raise InputError(
            f'there is no folder "{folder}": give a folder with one subfolder per class.'
        )
    if chosen.pattern_set is not None and config.data is None:
        return LabeledFolder(folder, chosen.pattern_set.add)
    return LabeledFolder(folder)


def _list_classes(
    identification: Identification, chosen: Chosen, classes: LabeledFolder
) -> list[str]:
    """The classes to choose from: those of the model, and those whose folders were added since."""
    trained = (
        identification.settings.get("classes") or read_results(chosen.model).get("classes") or []
    )
    guessed = {label for photo in identification.photos for label, _ in photo.best}
    return sorted({*map(str, trained), *guessed, *classes.labels()}, key=natural_order)


def _call_to_train(chosen: Chosen, config: ReviewConfig) -> Call:
    """The call that trains again from the last weights."""
    if chosen.pattern_set is not None and config.data is None:
        return chosen.pattern_set.call_to_train()
    trained_on = read_results(chosen.model).get("data", {}).get("folder")
    folder = config.data or (Path(trained_on) if trained_on else chosen.classes_folder)
    out = _free_name(chosen.model)
    places = {"data": folder, "start_from": chosen.model, "out": out}
    return Call("clew.patterns.train", (), {name: str(path) for name, path in places.items()})


def call_to_review(chosen: Chosen, config: ReviewConfig) -> Call:
    """The call that asks the remaining questions, without identifying again."""
    newest = find_newest(chosen.home)
    is_newest = config.identified in (None, newest, newest and newest.parent)
    wishes: dict[str, object] = {
        "identified": None if is_newest else str(config.identified),
        "data": config.data and str(config.data),
        "move": config.move,
        "every": config.every,
    }
    return chosen.call_to_review({name: value for name, value in wishes.items() if value})


def _free_name(model: Path) -> Path:
    numbers = range(2, 10_000)
    names = (model.with_name(f"{model.name}-{number}") for number in numbers)
    return next(name for name in names if not name.exists())
