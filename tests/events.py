"""What a run calls: a reporter (tests pass the `append` of a list), and whether to stop."""

from collections.abc import Iterable
from typing import TypeVar

from clew.base.progress import Event, Note

Kind = TypeVar("Kind", bound=Event)


def pick(events: Iterable[Event], kind: type[Kind]) -> list[Kind]:
    return [event for event in events if isinstance(event, kind)]


def notes(events: Iterable[Event]) -> list[str]:
    return [note.text for note in pick(events, Note)]


class Later:
    """A `should_stop` that returns true from the n-th call on."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0
