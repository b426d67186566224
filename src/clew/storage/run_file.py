"""run.toml: the settings that repeat a run, in the folder that the run wrote."""

import functools
import inspect
import logging
import os
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from clew.base.commands import bind
from clew.base.errors import InputError, StoppedError
from clew.base.texts import quoted
from clew.base.typed_json import read_as
from clew.base.urls import as_path, is_url, local_path
from clew.version import __version__

logger = logging.getLogger(__name__)
RUN_FILE = "run.toml"
# Arguments that say how a call is watched, not what it does.
WATCHING = ("reporter", "should_stop")
_ABOUT = ("command", "version", "not_recorded")
_MAX_BYTES = 1 << 20
_MAX_PARTS = 64
_BEGIN = '# Settings of a run of "clew '
_FIRST_LINE_BYTES = 200

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class NeverFromFile:
    """Annotates a setting that decides where keys and data go, or who may connect: a settings file
    may record it, but only its flag is followed."""


class UrlNeverFromFile:
    """The same for an output that is a folder or a URL: only its flag may name a URL."""


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """The contents of a run.toml. `command` is None in a hand-written file without it;
    `not_recorded` names settings whose values were Python objects."""

    path: Path
    command: str | None
    settings: dict[str, Any]
    not_recorded: tuple[str, ...] = ()


def read_run_file(path: str | Path) -> RunFile:
    """Raises InputError for a file that is missing, too large or not TOML."""
    path = Path(path)
    try:
        content = _parse(_read(path))
        command = read_as(str | None, content.get("command"), "command")
        unknown = read_as(list[str], content.get("not_recorded", []), "not_recorded")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(
            f"it cannot be read ({reason}). Check the path.", setting="config", value=path
        ) from None
    except ValueError as error:  # TOMLDecodeError is one
        raise InputError(f"it is not valid TOML: {error}.", setting="config", value=path) from None
    settings = {name: value for name, value in content.items() if name not in _ABOUT}
    return RunFile(path=path, command=command, settings=settings, not_recorded=tuple(unknown))


def _read(path: Path) -> str:
    from clew.storage.reading import read_bounded

    return read_bounded(path, _MAX_BYTES).decode()


def _parse(text: str) -> dict[str, Any]:
    """TOML; raises ValueError. What tomllib takes for a key of n parts grows with n squared."""
    from clew.storage.reading import TOO_MANY_DIGITS

    for line in text.split("\n"):
        keys = line.split("=")[:-1] or ([line] if line.lstrip().startswith("[") else [])
        if any(key.count(".") > _MAX_PARTS for key in keys):
            raise ValueError(f"a name has more than {_MAX_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python's own words are about a setting of the interpreter
        raise ValueError(f"it contains {TOO_MANY_DIGITS}") from None


def repeatable(
    command: str,
    *,
    folder: str | Callable[[Any], Path | None] = "out",
    always: Collection[str] = (),
    unrecorded: Collection[str] = (),
    growing: Collection[str] = (),
    unless: str = "",
    find_done: Callable[[Mapping[str, Any], Mapping[str, Any]], Any] = lambda *_: None,
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorator for a function that is also a command: after a run, its output folder contains the
    run.toml that repeats it.

    `folder` names the argument with that folder, or finds it in the result. Settings are recorded
    where they differ from their defaults, those in `always` in any case, those in `unrecorded`
    never. Of those in `growing`, the largest number recorded in the folder is kept (no number means
    all), since a later run with a smaller one removes nothing. A run that was stopped cleanly is
    recorded too, where `out` was given and contains something. Nothing is recorded if the setting
    `unless` is true. `find_done` gets all settings and
    those to record; if nothing is to be done, it returns the earlier result.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Arguments.args, **given: Arguments.kwargs) -> Result:
            bound = bind(function, signature, *args, **given)
            bound.apply_defaults()
            if unless and bound.arguments[unless]:
                return function(*args, **given)
            names = {*bound.arguments} - {*WATCHING, *unrecorded, unless}
            recorded = {
                name: value
                for name, value in bound.arguments.items()
                if name in names and (name in always or value != signature.parameters[name].default)
            }
            done: Result | None = find_done(bound.arguments, recorded)
            if done is not None:
                return done

            def record(where: Any) -> None:
                write_run_file(where, command, _keep_largest(where, recorded, growing))

            named = bound.arguments.get(folder if isinstance(folder, str) else "out")
            if named is not None and _has_foreign_file(named):
                raise InputError(
                    f'"{as_path(named) / RUN_FILE}" was not written by clew, so it is not '
                    "replaced: choose another output folder, or move it."
                )
            try:
                result = function(*args, **given)
            except StoppedError:
                if _has_content(named):
                    record(named)
                raise
            record(folder(result) if callable(folder) else named)
            return result

        return call

    return decorate


def _keep_largest(
    folder: str | Path | None, settings: Mapping[str, Any], growing: Collection[str]
) -> dict[str, Any]:
    """`settings`, with the values of `growing` from the folder's run.toml where they are larger."""
    kept = dict(settings)
    if not growing or folder is None:
        return kept
    try:
        earlier = _read_recorded(as_path(folder))
    except InputError:  # none yet, or not readable: the run itself has succeeded
        return kept
    for name in growing:
        values = [value for value in (earlier.get(name), kept.pop(name, None)) if value is not None]
        if len(values) == 2 and all(isinstance(value, int) for value in values):
            kept[name] = max(values)
    return kept


def _read_recorded(folder: Path) -> dict[str, Any]:
    """The settings that an earlier run recorded in a folder or at a URL."""
    from clew.storage.working_copy import fetched

    with fetched(folder, RUN_FILE) as path:
        return read_run_file(path).settings


def _has_content(folder: str | Path | None) -> bool:
    """Whether a folder contains more than locks and temporary files."""
    if folder is None:
        return False
    if is_url(folder):
        from clew.storage.places import open_place

        return bool(open_place(folder).names())
    if not Path(folder).is_dir():
        return False
    return any(
        not path.name.startswith(".") and path.suffix != ".tmp" for path in Path(folder).iterdir()
    )


def write_run_file(folder: str | Path | None, command: str, settings: Mapping[str, Any]) -> None:
    """Write `folder`/run.toml in one step, also at a URL. Where torchrun started several processes,
    the first writes it; a folder that does not exist is not created, and a file that clew did not
    write is not replaced."""
    from clew.storage.places import open_place
    from clew.storage.writing import replace_file

    is_first = "TORCHELASTIC_RUN_ID" not in os.environ or os.environ["RANK"] == "0"
    if folder is None or not is_first:
        return
    if _has_foreign_file(folder):
        logger.warning(
            'the settings of this run are not recorded: "%s" was not written by clew',
            as_path(folder) / RUN_FILE,
        )
        return
    content = describe_run(command, settings).encode()
    if is_url(folder):
        open_place(folder).replace(RUN_FILE, content, None)
    elif as_path(folder).is_dir():
        replace_file(as_path(folder) / RUN_FILE, content)


def is_run_file(folder: Path, command: str = "") -> bool:
    """Whether a folder has the run.toml of a command, or of any."""
    from clew.storage.reading import open_regular

    try:
        with open_regular(folder / RUN_FILE) as file:
            first = file.readline(_FIRST_LINE_BYTES).decode("utf-8", "replace")
    except OSError:
        return False
    return first.startswith(f'{_BEGIN}{command}"' if command else _BEGIN)


def _has_foreign_file(folder: str | Path) -> bool:
    if is_url(folder):
        return False
    path = local_path(folder)
    return (path / RUN_FILE).exists() and not is_run_file(path)


def has_same_settings(
    folder: Path, recorded: Mapping[str, Any], *, besides: Collection[str] = ()
) -> bool:
    """Whether the run.toml in a folder records the same settings; those in `besides` do not count.
    False if there is no run.toml, or if it lacks a value."""
    try:
        found = read_run_file(folder / RUN_FILE)
    except InputError:
        return False
    again = tomllib.loads(describe_run(found.command or "", recorded))
    names = {*found.settings, *again} - {*besides, *_ABOUT}
    is_complete = not found.not_recorded and "not_recorded" not in again
    return is_complete and all(found.settings.get(name) == again.get(name) for name in names)


def describe_run(command: str, settings: Mapping[str, Any]) -> str:
    """The text of a run.toml."""
    known = {name: _as_toml(value) for name, value in settings.items() if value is not None}
    unknown = [name for name, text in known.items() if text is None]
    lines = [
        f'{_BEGIN}{command}". To repeat it, pass this file as `config`.',
        f"command = {_as_toml(command)}",
        f"version = {_as_toml(__version__)}",
        *([f"not_recorded = {_as_toml(unknown)}"] if unknown else []),
        "",
        *(f"{name} = {text}" for name, text in known.items() if text is not None),
    ]
    return "\n".join(lines) + "\n"


def _as_toml(value: Any) -> str | None:
    """The value in TOML; None for a Python object, which TOML cannot represent."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        return _quote(str(value))
    if isinstance(value, list | tuple):
        parts = [_as_toml(item) for item in value]
        return None if None in parts else f"[{', '.join(part for part in parts if part)}]"
    return None


def _quote(text: str) -> str | None:
    """Quote a string for TOML; a lone surrogate cannot be written (None)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return quoted(text)
