"""A running review: one question after the other, each answer applied at once, and the messages
that the terminal and the page show."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from clew.base.errors import Call, InputError
from clew.base.texts import for_terminal
from clew.patterns.library.names import check_class_name
from clew.patterns.library.summary import MIN_PHOTOS
from clew.patterns.review.notes import Action, Decision, digest_file
from clew.patterns.review.questions import Choice, Question, Queue, find_label, list_choices
from clew.patterns.review.shelf import Carrier


def safe_text(text: str) -> str:
    """For a terminal and a page: neither must interpret what a file name contains."""
    return for_terminal(text)


def describe_new_classes(classes: Mapping[str, int]) -> str:
    """The new classes, and whether they can be trained on; "" if there are none."""
    if not classes:
        return ""
    shown = ", ".join(f"{safe_text(label)} ({count:,})" for label, count in classes.items())
    few = min(classes.values()) < MIN_PHOTOS
    need = f" Each class requires at least {MIN_PHOTOS} photos for training." if few else ""
    return f"New classes, with their photos: {shown}.{need}"


def name_some(names: tuple[str, ...], *, most: int = 5) -> str:
    """The first few by name, the others by number."""
    shown = ", ".join(f'"{safe_text(name)}"' for name in names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


class Review:
    """The questions of a queue, in order, for the terminal and the page.

    `next_call` is what to do afterwards, `again_call` asks what is left. Threads that share it hold
    `lock`.
    """

    def __init__(
        self,
        queue: Queue,
        carrier: Carrier,
        classes: Sequence[str],
        *,
        moves: bool = False,
        next_call: Call,
        again_call: Call,
    ) -> None:
        self.queue, self.classes, self.moves = queue, list(classes), moves
        self.next_call, self.again_call = next_call, again_call
        self.lock = threading.RLock()
        self._carrier, self._known = carrier, set(classes)
        # The decisions of this review, the last at the end; None for a photo that was missing.
        self._answers: list[Decision | None] = []

    @property
    def place(self) -> int:
        """The number of answered questions, which is the index of the open one."""
        return len(self._answers)

    @property
    def current(self) -> Question | None:
        """The question that is open; None when all are answered."""
        return self.queue.questions[self.place] if self.place < len(self.queue.questions) else None

    @property
    def folder(self) -> str:
        """Where the photos go: the folder with one folder per class."""
        return str(self._carrier.shelf.folder)

    def counts(self) -> Counter[str]:
        """How many this review approved, corrected and skipped."""
        return Counter(answer.action for answer in self._answers if answer is not None)

    def new_classes(self) -> dict[str, int]:
        """Classes that got their first photos from this review, with their numbers."""
        given = Counter(answer.label for answer in self._answers if answer is not None)
        return {one: given[one] for one in self.classes if given[one] and one not in self._known}

    def describe(self, decision: Decision) -> str:
        """A sentence about the result of an answer."""
        where = f"{self.folder}/{decision.placed}"
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
        return self._answer("approved", self._open_question().best.label)

    def correct(self, label: str) -> Decision:
        """Put the photo into another class, possibly a new one. Raises InputError for an invalid
        name."""
        label = find_label(self.classes, label) or check_class_name(label)
        is_guess = label == self._open_question().best.label
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
            self._answers.append(self._carrier.notes.add(decision))

    def undo(self) -> Question:
        """Undo the last answer and ask the question again.

        Raises InputError when there is none, or when the photo cannot be restored.
        """
        if not self._answers:
            raise InputError("there is nothing to undo: no photo has been reviewed yet.")
        answer = self._answers[-1]
        if answer is not None:
            self._carrier.take_back(answer)
        self._answers.pop()
        self._forget_unused_classes()
        return self.queue.questions[self.place]

    def _forget_unused_classes(self) -> None:
        """Forget new classes whose only answers were undone, so that they are not offered again."""
        used = {answer.label for answer in self._answers if answer is not None}
        self.classes = [one for one in self.classes if one in self._known or one in used]

    def _open_question(self) -> Question:
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
        decision = self._carrier.carry_out(self._carrier.notes.add(decision))
        self._answers.append(decision)
        return decision

    def _decision(self, question: Question, action: Action, label: str | None = None) -> Decision:
        state = question.path.stat()
        return Decision(
            name=question.name,
            path=str(question.path),
            bytes=state.st_size,
            modified_ns=state.st_mtime_ns,
            digest=digest_file(question.path),
            action=action,
            label=label,
            guess=question.best.label,
            probability=round(question.best.probability, 6),
            moves=self.moves and label is not None,
            step="done" if label is None else "place",
            decided=datetime.now(UTC).isoformat(timespec="seconds"),
        )
