"""What a restricted pickle gets to see in place of the functions and classes it names."""

from collections.abc import Callable
from typing import Any

from clew.errors import UnsafePickleError


class RefusedContentError(UnsafePickleError):
    """An allowed name was used for something that plain data has no need of."""


def refuse_unless(fine: bool, what: str) -> None:
    if not fine:
        raise RefusedContentError(what)


class Allowed:
    """A function that a pickle may call and do nothing else with.

    A bare function would not do: pickle's BUILD sets attributes on whatever it is given, so a
    file could change our own functions for the rest of the process. `__setstate__` is asked
    first, and refuses.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise RefusedContentError("it tries to change a function")


class Inert:
    """Stands in for a class: it can be made and given a state, which it holds, and no more."""

    __slots__ = ("state",)

    state: Any

    def __new__(cls, *_arguments: Any) -> "Inert":
        self = super().__new__(cls)
        self.state = None
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state
