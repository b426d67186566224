"""Commands are functions whose arguments are the fields of a class of settings: signature, flags,
help and run.toml come from it. Groups of settings that several commands have are its bases."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from clew.base.progress import Reporter

Arguments = ParamSpec("Arguments")
Settings = TypeVar("Settings")
Result = TypeVar("Result")
# An argument and its text in the "Args:" of a docstring, up to the next one.
_ARGUMENT = re.compile(r"^ {4}(\w+): .*\n(?: {5,}.*\n)*", re.MULTILINE)
_SECTION = re.compile(r"^(?=(?:Returns|Raises|Examples):$)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """How a long call is watched.

    Args:
        reporter: Called with progress events. [default: the log]
        should_stop: Called after every step; when it returns True, the run saves its progress and
            stops.
    """

    reporter: Reporter | None = None
    should_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, kw_only=True)
class Cached:
    """Where stores at URLs are kept on this machine.

    Args:
        cache_dir: Folder for what is downloaded from a URL. [default: the user's cache folder]
        cache_size: The most that this folder may take, such as "50GB". [default: what was set last,
            or 64 GB, at most half of the free space]
    """

    cache_dir: str | Path | None = None
    cache_size: str | int | None = None


def takes(
    settings: Callable[Arguments, Settings],
) -> Callable[[Callable[[Settings], Result]], Callable[Arguments, Result]]:
    """Decorator: the function takes the fields of a class of settings as arguments, and gets an
    instance. Its signature lists the fields of the class before those of its bases, and its
    docstring has their "Args:"."""

    def decorate(function: Callable[[Settings], Result]) -> Callable[Arguments, Result]:
        @functools.wraps(function)
        def call(*args: Arguments.args, **given: Arguments.kwargs) -> Result:
            return function(settings(*args, **given))

        found = _parameters(settings)
        result = inspect.signature(function).return_annotation
        call.__signature__ = inspect.Signature(found, return_annotation=result)  # type: ignore[attr-defined]
        call.__doc__ = _add_arguments(inspect.getdoc(function) or "", settings, found)
        return call

    return decorate


def select(kind: Callable[..., Settings], given: object, **others: Any) -> Settings:
    """Smaller settings from the fields of the same names in larger ones, and `others`."""
    names = (one.name for one in fields(kind) if one.init)  # type: ignore[arg-type]
    same = {name: getattr(given, name) for name in names if hasattr(given, name)}
    return kind(**{**same, **others})


def _parameters(settings: Any) -> list[inspect.Parameter]:
    """Positional ones first, then the class's own before those of its bases."""
    found = inspect.signature(settings).parameters
    own = [name for kind in settings.__mro__ for name in vars(kind).get("__annotations__", ())]
    order = {name: number for number, name in reversed([*enumerate(own)])}
    return sorted(found.values(), key=lambda one: (one.kind, order[one.name]))


def _add_arguments(text: str, settings: Any, found: list[inspect.Parameter]) -> str:
    texts: Mapping[str, str] = dict(_documented(settings))
    block = "Args:\n" + "".join(texts[one.name] for one in found if one.name in texts)
    parts = _SECTION.split(f"{text}\n", maxsplit=1)
    return "\n".join([parts[0].rstrip() + "\n", block, *parts[1:]]).rstrip()


def _documented(settings: Any) -> Iterator[tuple[str, str]]:
    """The text of each argument; a class overrides those of its bases."""
    for kind in reversed(settings.__mro__):
        if kind is not object and "Args:\n" in (text := inspect.getdoc(kind) or ""):
            for match in _ARGUMENT.finditer(text.partition("Args:\n")[2] + "\n"):
                yield match[1], match[0]
