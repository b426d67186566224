"""Errors of the library on the command line: settings become flags, actions become commands."""

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn

from clew.base.errors import Call, ClewError, InputError, describe_setting, join_sentences
from clew.base.terminal import TextConsole
from clew.base.texts import for_shell, for_terminal

# Settings that a command takes as positional arguments.
_WORDS = {"clew.patterns.train": ("name",)}
SETTING = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`\n]*))?`")


@cache
def read_texts() -> dict[str, Any]:
    """What commands.toml says about all commands, settings and errors."""
    return tomllib.loads(files("clew.cli").joinpath("commands.toml").read_text("utf-8"))


def error_text(error: ClewError) -> str:
    """The text of an error, with flags and commands."""
    about = ""
    if error.setting:
        about = f"{describe_setting(flag(error.setting), error.value)}: "
    way_out = ""
    if error.action:
        way_out = read_texts()["errors"]["actions"][error.action].format(
            store=for_shell([error.store])
        )
    text = "".join(
        f'"{call_text(part)}"' if isinstance(part, Call) else with_flags(part)
        for part in error.parts
    )
    return join_sentences(f"{about}{text}", way_out)


@contextmanager
def naming_arguments(titles: Mapping[str, str]) -> Iterator[None]:
    """Errors name positional arguments as the help shows them: `photos` is FOLDER, not --photos.
    `titles` are those of a command, by setting."""
    try:
        yield
    except ClewError as error:
        error.setting = titles.get(error.setting or "", error.setting)
        error.parts = tuple(
            SETTING.sub(lambda found: titles.get(found[1], found[0]), part)
            if isinstance(part, str)
            else part
            for part in error.parts
        )
        raise


def call_text(call: Call) -> str:
    """The command that does the same as the call, quoted for a shell."""
    settings = dict(call.settings)
    bare = [settings.pop(name) for name in _WORDS.get(call.function, ()) if name in settings]
    if "library" in settings:  # last, as in every other hint
        settings["library"] = settings.pop("library")
    flags = (
        [flag(name)] if value is True else [flag(name), str(value)]
        for name, value in settings.items()
    )
    words = [*call.words, *bare, *(word for pair in flags for word in pair)]
    return for_shell(["clew", *read_texts()["errors"]["calls"][call.function].split(), *words])


def with_flags(text: str) -> str:
    """Settings between backticks as flags: "`keep=\"full\"`" is --keep full."""
    return SETTING.sub(lambda found: flag(found[1], found[2]), text)


def flag(name: str, value: str | None = None) -> str:
    """`("batch_size", "32")` is --batch-size 32; `("graphs", "False")` is --no-graphs."""
    if name.isupper():  # a positional argument
        return name
    usual = (_dashed("", name), _dashed("no-", name))
    on, off = read_texts()["settings"]["flags"].get(name, usual)
    if value is None or value == "True":
        return on
    if value == "False":
        return off
    return f"{on} {_shell_value(value)}"


def _dashed(prefix: str, name: str) -> str:
    return f"--{prefix}{name.strip('_').replace('_', '-')}"


def _shell_value(value: str) -> str:
    """A Python string without its quotes, unless a shell needs them."""
    text = value[1:-1] if value[:1] in ("'", '"') and value[-1:] == value[:1] else value
    return for_shell([text])


def complain(message: str) -> None:
    # A newline may come from a file name: what follows it must not look like a message of its own.
    text = re.sub(r"\n(?=\S)", "\n  ", for_terminal(message, lines=True))
    TextConsole(stderr=True).print(f"clew: {text}", soft_wrap=True)


def exit_with(error: ClewError | OSError) -> NoReturn:
    """Print one message. The exit code is 2 for invalid input, 1 for any other failure."""
    if isinstance(error, ClewError):
        complain(error_text(error))
        sys.exit(2 if isinstance(error, InputError) else 1)
    where = f'"{error.filename}": ' if error.filename else ""
    complain(f"{where}{error.strerror or error}. Everything written so far is kept.")
    sys.exit(1)
