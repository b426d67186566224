"""Help as plain text, readable at 80 columns; commands by section; usage errors that name the flag
that was probably meant; what the shell suggests."""

import inspect
import re
import shlex
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import escape, glob
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from clew.base.errors import InputError
from clew.base.texts import find_close, for_terminal

GENERAL = "General"
_OPTIONS = "Options"
_NARROWEST, _WIDEST = 50, 100
_FLAG_COLUMN = 26
_GAP = 2
_DEFAULT = re.compile(r"\[default: [^]]{1,30}\]")
_NO_BREAK = "\0"

Rows = list[tuple[str, str]]


class HelpCommand(TyperCommand):
    """A command whose help is formatted by this module."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with explained(self, ctx, list(args)):
            return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [one for one in self.get_params(ctx) if one.param_type_name == "argument"]
        return _usage_words(arguments)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_command_help(self, ctx, _width()))


class HelpGroup(TyperGroup):
    """A group of commands whose help is formatted by this module. "clew help extract" is "clew
    extract --help"."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with explained(self, ctx, list(args)):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] != "help":
            return super().resolve_command(ctx, args)
        if len(args) == 1:
            typer.echo(ctx.get_help())
            raise typer.Exit
        return super().resolve_command(ctx, [*args[1:], "--help"])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_group_help(self, ctx, _width()))


def _width() -> int:
    """The width of the terminal within limits; click's own is two columns narrower."""
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size().columns))


def _command_help(command: Any, ctx: Any, width: int) -> str:
    parameters = [one for one in command.get_params(ctx) if not getattr(one, "hidden", False)]
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    tables = {heading: list(map(_describe, found)) for heading, found in _options(parameters)}
    if arguments:
        rows = [(one.metavar or one.name.upper(), one.help or "") for one in arguments]
        tables = {"Arguments": rows, **tables}
    sections = [
        _usage(ctx, arguments, width),
        *_paragraphs(command.help, width),
        *_sections(tables, width),
    ]
    if command.epilog:
        sections.append(_example(command.epilog, width))
    return "\n\n".join(sections) + "\n"


def _group_help(group: Any, ctx: Any, width: int) -> str:
    commands = [
        (name, command.get_short_help_str(limit=500))
        for name in group.list_commands(ctx)
        if not (command := group.get_command(ctx, name)).hidden
    ]
    options = [_describe(one) for one in group.get_params(ctx)]
    sections = [
        f"Usage: {ctx.command_path} COMMAND [OPTIONS]",
        *_paragraphs(group.help, width),
        *_sections({"Commands": commands}, width),
        *_sections({_OPTIONS: options}, width),
        f'Run "{ctx.command_path} COMMAND -h" for the options of a command.',
    ]
    return "\n\n".join(sections) + "\n"


def _usage(ctx: Any, arguments: list[Any], width: int) -> str:
    return textwrap.fill(f"Usage: {ctx.command_path} {' '.join(_usage_words(arguments))}", width)


def _usage_words(arguments: list[Any]) -> list[str]:
    """The words after the command in the usage line. Metavars of optional arguments already include
    their brackets."""
    shown = (one for one in arguments if not getattr(one, "hidden", False))
    return ["[OPTIONS]", *(one.metavar or one.name.upper() for one in shown)]


def _paragraphs(text: str | None, width: int) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        if paragraph:
            yield textwrap.fill(" ".join(paragraph.split()), width)


def _options(parameters: list[Any]) -> Iterable[tuple[str, list[Any]]]:
    """The options by heading: those without one first, -h among the general ones."""
    groups: dict[str, list[Any]] = {_OPTIONS: []}
    options = [one for one in parameters if one.param_type_name == "option"]
    has_general = any(_panel(one) == GENERAL for one in options)
    for one in options:
        heading = GENERAL if has_general and one.name == "help" else _panel(one)
        groups.setdefault(heading or _OPTIONS, []).append(one)
    return ((heading, found) for heading, found in groups.items() if found)


def _panel(option: Any) -> str | None:
    return getattr(option, "rich_help_panel", None)


def _sections(tables: Mapping[str, Rows], width: int) -> Iterator[str]:
    """Format the sections with one common column of descriptions; a flag that is too long gets its
    own line."""
    lengths = [len(flags) for rows in tables.values() for flags, _ in rows]
    column = 2 + max((one for one in lengths if one <= _FLAG_COLUMN), default=0) + _GAP
    for heading, rows in tables.items():
        lines = [line for flags, text in rows for line in _row(flags, text, column, width)]
        yield "\n".join([f"{heading}:", *lines])


def _row(flags: str, text: str, column: int, width: int) -> list[str]:
    body = _wrap(text, width - column)
    first = f"  {flags}"
    if body and len(first) + _GAP <= column:
        first = f"{first:<{column}}{body.pop(0)}"
    return [first, *(" " * column + line for line in body)]


def _wrap(text: str, width: int) -> list[str]:
    """Wrap the text without breaking a short "[default: ...]" across lines."""
    kept = _DEFAULT.sub(lambda found: found[0].replace(" ", _NO_BREAK), text)
    lines = textwrap.wrap(kept, width, break_on_hyphens=False, break_long_words=False)
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _describe(option: Any) -> tuple[str, str]:
    text = inspect.cleandoc(option.help or "").replace("\n", " ")
    default = _default_text(option)
    if default and "[default:" not in text:
        text = f"{text} [default: {default}]"
    metavar = "" if option.is_flag else f" {option.metavar}"
    return f"{', '.join(_spellings(option))}{metavar}", text


def _spellings(option: Any) -> list[str]:
    """The spellings of an option. The negative flag (--no-X) is shown unless the option is off by
    default."""
    on, off = sorted(option.opts, key=len), list(option.secondary_opts)
    return on if option.default is False else [*on, *off]


def _default_text(option: Any) -> str:
    default = option.default
    if default is None or default is False or not option.show_default or option.name == "help":
        return ""
    if default is True:
        return "on"
    return str(getattr(default, "value", default))


def _example(epilog: str, width: int) -> str:
    """The example, ready to paste: long lines continue after a backslash, never between a flag and
    its value."""
    words = list(map(shlex.quote, shlex.split(epilog.removeprefix("Example:").strip(" `"))))
    pieces: list[str] = []
    for word in words:
        if pieces and pieces[-1].startswith("--") and not word.startswith("--"):
            pieces[-1] += f" {word}"
        else:
            pieces.append(word)
    lines, current = [], " "
    for piece in pieces:
        if len(current) + 1 + len(piece) > width - 2:
            lines.append(f"{current} \\")
            current = "   "
        current = f"{current} {piece}"
    return "\n".join(["Example:", *lines, current])


# Not exported by typer: the base class of errors about what was typed.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
# By the metavar that the help shows; the types of options differ between versions of typer.
_WANTED = {"N": "it must be an integer", "X": "it must be a number"}


@contextmanager
def explained(command: Any, ctx: Any, words: Sequence[str]) -> Iterator[None]:
    """Raise InputError for an unknown option, and for a value that is not a number or not one of
    the choices. `words` are those to parse."""
    try:
        yield
    except typer.BadParameter as error:
        option: Any = getattr(error, "param", None)
        wanted = _wanted(option)
        if not wanted:
            error.message = for_terminal(error.message)
            raise
        value = _read_value(command, ctx, words, option.name)
        raise InputError(f"{wanted}.", setting=option.name, value=value) from None
    except _UsageError as error:
        name = getattr(error, "option_name", None)
        if name is None or not hasattr(error, "possibilities"):
            error.message = for_terminal(getattr(error, "message", ""))  # type: ignore[attr-defined]
            raise
        raise InputError(_describe_unknown(command, ctx, name)) from None


def _wanted(option: Any) -> str:
    """What an option takes; "" if its metavar does not say."""
    metavar = getattr(option, "metavar", None) or ""
    if metavar.startswith("[") and "|" in metavar:
        return f"choose from: {', '.join(metavar.strip('[]').split('|'))}"
    return _WANTED.get(metavar, "")


def _read_value(command: Any, ctx: Any, words: Sequence[str], name: str) -> Any:
    """The value of an option as it was typed."""
    typed, _, _ = command.make_parser(ctx).parse_args(args=list(words))
    value = typed.get(name)
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _describe_unknown(command: Any, ctx: Any, name: str) -> str:
    known = [
        flag
        for one in command.get_params(ctx)
        if one.param_type_name == "option" and not getattr(one, "hidden", False)
        for flag in (*one.opts, *one.secondary_opts)
    ]
    close = find_close(name, known)
    meant = f" Did you mean {close}?" if close else ""
    return f'there is no option {name}.{meant} Run "{ctx.command_path} -h" for all options.'


Complete = Callable[[str], list[str]]


def suggest(words: Iterable[str]) -> Complete:
    """The words that start as what was typed. PATH among them stands for files and folders, LIST
    for several between commas; those already typed are not suggested again."""

    def complete(incomplete: str) -> list[str]:
        typed, comma, last = incomplete.rpartition(",") if "LIST" in words else ("", "", incomplete)
        left = [word for word in words if word not in ("PATH", "LIST", *typed.split(","))]
        paths = sorted(glob(f"{escape(incomplete)}*")) if "PATH" in words else []
        folders = [f"{path}/" if Path(path).is_dir() else path for path in paths]
        return [*(f"{typed}{comma}{word}" for word in left if word.startswith(last)), *folders]

    return complete
