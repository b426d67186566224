"""The events that a reporter was called with: tests pass the `append` of a list."""

from collections.abc import Iterable
from typing import TypeVar

from clew.progress import Event, Note

Kind = TypeVar("Kind", bound=Event)


def pick(events: Iterable[Event], kind: type[Kind]) -> list[Kind]:
    return [event for event in events if isinstance(event, kind)]


def notes(events: Iterable[Event]) -> list[str]:
    return [note.text for note in pick(events, Note)]
