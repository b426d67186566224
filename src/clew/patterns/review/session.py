"""A person decides about photos, one at a time, and each decision is carried out at once: what all
sessions share, and the review of identified photos, with what is asked and which key means what."""

import itertools
import os
import re
import threading
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from clew.base.errors import Call, InputError
from clew.base.texts import counted, for_terminal, whole_percent
from clew.patterns.identification.results import Identification, Identified
from clew.patterns.library.pattern_set import MIN_PHOTOS
from clew.patterns.library.placing import check_class_name
from clew.patterns.review.journal import Action, Decision, Decisions, digest_file

_KEYS = "123456789"
_COUNTED = ("approved", "corrected", "skipped")
_NUMBER = re.compile("0|[1-9][0-9]*")
# The text of a call, or of a setting in backticks, for the user's interface.
Say = Callable[[Call | str], str]


class Session:
    """Decisions about photos, for the terminal and the page. `next_call` is what to do afterwards,
    `again_call` asks what is left. Threads that share it hold `lock`.

    For the page, a session has the names of its files (`PACKAGE`), the kind of its answers
    (`Answer`), the sides of its pictures in pixels, and the methods below.
    """

    PACKAGE: ClassVar[str]
    Answer: ClassVar[type]
    SIDES: ClassVar[Mapping[str, int]]

    def __init__(
        self, decisions: Decisions, classes: Sequence[str], *, next_call: Call, again_call: Call
    ) -> None:
        self.decisions, self.classes = decisions, list(classes)
        self.next_call, self.again_call = next_call, again_call
        self.lock = threading.RLock()
        # The decisions of this session, the last at the end; None for a photo that was missing.
        self._made: list[Decision | None] = []

    @property
    def place(self) -> int:
        """The number of decisions in this session."""
        return len(self._made)

    @property
    def report(self) -> Path | None:
        """A report that the page shows."""
        return None

    def path(self, number: int, *, other: bool = False) -> Path | None:
        """The file of a photo, by the number of its question; `other` is its second photo."""
        raise NotImplementedError

    def is_current(self, given: Any) -> bool:
        """Whether the page that gave this answer showed the current state."""
        raise NotImplementedError

    def carry_out(self, given: Any) -> str:
        """Carry out an answer of the page; returns what was done."""
        raise NotImplementedError

    def describe(self, say: Say) -> dict[str, Any]:
        """Everything that the page shows. Photos are identified only by numbers."""
        return {
            "place": self.place,
            "command": for_terminal(say(self.next_call)),
            "again": for_terminal(say(self.again_call)),
        }

    def _find_class(self, label: str) -> str:
        """A class as it was typed, possibly a new one. Raises InputError for an invalid name."""
        return find_label(self.classes, label) or check_class_name(label)


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
    behind: int = 0  # questions of earlier identifications, which come when these are answered

    def tell(self, say: Say) -> list[str]:
        """What is asked, and what is not, in lines."""
        every = say("`every=True`")
        before = [
            f"{self.decided:,} reviewed" if self.decided else "",
            f"{self.skipped:,} skipped ({every} includes them)" if self.skipped else "",
        ]
        faulty = f"{len(self.faulty):,} could not be opened: {name_some(self.faulty)}"
        sure = f"{counted(self.sure, 'confident prediction')} not shown ({every} includes them)"
        unknown = sum(photo.unknown for photo in self.questions)
        kind = f" ({unknown:,} of them unknown)" if unknown else ""
        behind = f"{counted(self.behind, 'photo')} of earlier identifications"
        lines = {
            f"{counted(len(self.questions), 'photo')} to review{kind}, from {self.source}": True,
            f"waiting behind these: {behind}": self.behind > 0,
            f"in earlier reviews: {', '.join(filter(None, before))}": any(before),
            f"no longer found: {len(self.gone):,} ({name_some(self.gone)})": bool(self.gone),
            faulty: bool(self.faulty),
            sure: self.sure > 0,
        }
        return [line for line, is_shown in lines.items() if is_shown]


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


@dataclass(frozen=True, kw_only=True)
class PageAnswer:
    """A person's answer; `question` is the number of the one that was on the screen."""

    question: int
    action: Literal["approve", "correct", "skip", "undo"]
    label: str = ""


class Review(Session):
    """The questions of a queue, in order."""

    PACKAGE, Answer, SIDES = "clew.patterns.review", PageAnswer, {"photos": 1600}

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
        super().__init__(decisions, classes, next_call=next_call, again_call=again_call)
        self.queue, self.moves, self._known = queue, moves, set(classes)

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
        return Counter(one.action for one in self._made if one is not None)

    def new_classes(self) -> dict[str, int]:
        """Classes that got their first photos from this review, with their numbers."""
        given = Counter(one.label for one in self._made if one is not None)
        return {one: given[one] for one in self.classes if given[one] and one not in self._known}

    def describe_result(self, decision: Decision) -> str:
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
        label = self._find_class(label)
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
            self._made.append(None)  # there is nothing left to note
        else:
            self._made.append(self.decisions.note(decision))

    def undo(self) -> Identified:
        """Undo the last answer and ask the question again.

        Raises InputError when there is none, or when the photo cannot be restored.
        """
        if not self._made:
            raise InputError("there is nothing to undo: no photo has been reviewed yet.")
        if (answer := self._made[-1]) is not None:
            self.decisions.undo(answer)
        self._made.pop()
        # New classes whose only answers were undone are not offered again.
        used = {one.label for one in self._made if one is not None}
        self.classes = [one for one in self.classes if one in self._known or one in used]
        return self.queue.questions[self.place]

    def tell_end(self, say: Say) -> list[str]:
        """What was decided, what is left, and what to do now, in lines."""
        counts = self.counts()
        told = ", ".join(f"{counts[name]:,} {name}" for name in _COUNTED)
        left = len(self.queue.questions) - self.place
        rest = f"; {left:,} left, continue with: {say(self.again_call)}" if left else ""
        lines = [f"{told}{rest}"]
        if self.new_classes():
            lines.append(describe_new_classes(self.new_classes()))
        if counts["approved"] or counts["corrected"]:
            lines.append(f"the photos are in {self.folder}")
        if self.queue.behind and not left:
            waiting = f"{counted(self.queue.behind, 'photo')} of earlier identifications"
            lines.append(f"{waiting} wait: {say(self.again_call)}")
        if counts["approved"] or counts["corrected"]:
            lines.append(f"train again from the last weights with: {say(self.next_call)}")
        return lines

    def path(self, number: int, *, other: bool = False) -> Path | None:
        questions = self.queue.questions
        return questions[number].path if 0 <= number < len(questions) and not other else None

    def is_current(self, given: PageAnswer) -> bool:
        return given.question == self.place

    def carry_out(self, given: PageAnswer) -> str:
        if given.action == "undo":
            return f"Undone: {self.undo().name}"
        if given.action == "skip":
            self.skip()
            return "Skipped"
        decision = self.approve() if given.action == "approve" else self.correct(given.label)
        return self.describe_result(decision)

    def describe(self, say: Say) -> dict[str, Any]:
        total, counts, question = len(self.queue.questions), self.counts(), self.current
        return {
            **super().describe(say),
            "total": total,
            "question": question and self._describe(question),
            "following": self.place + 1 if self.place + 1 < total else None,
            "counts": {name: counts[name] for name in _COUNTED},
            "can_undo": self.place > 0,
            "new_classes": describe_new_classes(self.new_classes()),
            "moves": self.moves,
            "folder": for_terminal(self.folder),
        }

    def _describe(self, question: Identified) -> dict[str, Any]:
        keys = {choice.label: choice.key for choice in self.choices()}
        guesses = [
            {
                "label": label,
                "key": keys.get(label, ""),
                "probability": chance,
                "text": whole_percent(chance),
            }
            for label, chance in question.best
        ]
        return {"name": for_terminal(title_of(question)), "guesses": guesses, "keys": keys}

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
        self._made.append(decision)
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
