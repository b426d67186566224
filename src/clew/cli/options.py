"""Turns a function into the options of a command: types, flags and defaults from its signature,
help from its Google-style docstring."""

import builtins
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import typer

from clew.base.urls import is_url
from clew.cli.errors import flag, read_texts, with_flags
from clew.cli.help import Complete, suggest
from clew.storage.run_file import WATCHING, NeverFromFile, UrlNeverFromFile

REST = "rest"
SWITCH = "run_"  # before each choice of `networks`: --run-lstm/--no-run-lstm, ...
Kind = type[str] | type[int] | type[float] | type[bool] | type[Path]
KEYWORD = inspect.Parameter.KEYWORD_ONLY
# What is suggested in all commands; other suggestions in those that name them.
_SUGGESTED = ("device", "device_map")
_METAVARS: dict[Kind, str] = {str: "TEXT", int: "N", float: "X", Path: "PATH"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One argument of a function. `default` is `Parameter.empty` where it has none. `switches` are
    the help texts of a list of choices that has one pair of flags per choice."""

    name: str
    kind: Kind
    choices: tuple[str, ...]
    is_list: bool
    may_be_list: bool
    default: Any
    help: str
    is_positional: bool
    flags: tuple[str, ...]
    switches: Mapping[str, str] | None = None
    metavar: str = ""
    complete: Complete | None = None
    marks: tuple[Any, ...] = ()

    def needs_flag(self, value: Any) -> bool:
        """Whether this value is not followed in a settings file."""
        values = value if isinstance(value, list) else [value]
        is_output_url = UrlNeverFromFile in self.marks and any(is_url(one) for one in values)
        return NeverFromFile in self.marks or is_output_url

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def title(self) -> str:
        """The name of the setting in error messages."""
        if not self.is_positional:
            return self.flags[0]
        return (self.metavar or self.name.upper()).rstrip(".")

    def parameters(self, panel: str | None) -> list[inspect.Parameter]:
        """The parameters for typer."""
        if self.switches is not None:
            return self._switch_parameters(self.switches, panel)
        if self.is_positional:
            return [make_parameter(self.name, self._type(), self._argument(), None)]
        default = None if self.is_required else self.default
        if isinstance(default, tuple):
            default = list(default) or None
        option = typer.Option(
            *self._declarations(),
            help=self._help(),
            rich_help_panel=panel,
            metavar=self._metavar(),
            show_default=not isinstance(default, list),
            autocompletion=self.complete,
        )
        return [make_parameter(self.name, self._type(), option, default)]

    def _switch_parameters(
        self, switches: Mapping[str, str], panel: str | None
    ) -> list[inspect.Parameter]:
        found = []
        for choice, text in switches.items():
            name = f"{SWITCH}{choice}"
            on = _dashed(name)
            option = typer.Option(f"--{on}/--no-{on}", help=text, rich_help_panel=panel)
            found.append(make_parameter(name, bool, option, choice in self.default))
        return found

    def _help(self) -> str:
        text, default, value = self.help.partition(" [default: ")
        repeatable = " Repeatable." if self.is_list else ""
        required = " [required]" if self.is_required else ""
        return f"{text}{repeatable}{default}{value}{required}"

    def _argument(self) -> Any:
        title = self.metavar or self.name.upper()
        return typer.Argument(help=self.help, metavar=title if self.is_required else f"[{title}]")

    def _declarations(self) -> tuple[str, ...]:
        if self.kind is not bool:
            return self.flags
        off = flag(self.name, "False") or f"--no-{_dashed(self.name)}"
        return (f"{'/'.join((self.flags[0], off))}", *self.flags[1:])

    def _metavar(self) -> str | None:
        if self.metavar or self.kind is bool:
            return self.metavar or None
        return f"[{'|'.join(self.choices)}]" if self.choices else _METAVARS[self.kind]

    def _type(self) -> Any:
        one: Any = Literal[self.choices] if self.choices else self.kind
        return (list[one] if self.is_list else one) | None


def read_settings(function: Callable[..., Any], about: Mapping[str, Any]) -> list[Setting]:
    """The settings of a function in the order of its signature; `about` is its table in
    commands.toml."""
    texts = read_docstring(function).arguments
    return [
        _read(parameter, _evaluate(parameter.annotation, function), texts, about)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in WATCHING
    ]


def _read(
    parameter: inspect.Parameter,
    annotation: Any,
    texts: Mapping[str, str],
    about: Mapping[str, Any],
) -> Setting:
    name, shared = parameter.name, read_texts()["settings"]

    def told(table: str, other: Any = None) -> Any:
        return about.get(table, {}).get(name, other)

    usual_flags = ("--out", "--output-dir") if name == "out" else (flag(name),)
    is_text = name in about.get("texts", ())
    is_suggested = name in (*_SUGGESTED, *about.get("suggest", ()))
    words = [
        *(["auto"] if parameter.default == "auto" else []),
        *shared["suggestions"].get(name, ()),
    ]
    marks = getattr(annotation, "__metadata__", ())
    parts = _flatten(get_args(annotation)[0] if marks else annotation)
    lists = [part for part in parts if get_origin(part) in (Sequence, list, tuple)]
    singles = [part for part in parts if part not in lists]
    may_be_list = bool(lists)
    if lists and not any(_is_plain(part) for part in singles):
        singles = [inner for part in lists for inner in _flatten(get_args(part)[0])]
    return Setting(
        name=name,
        kind=str if is_text else _choose_kind(singles),
        choices=_choices(singles),
        is_list=may_be_list and not is_text,
        may_be_list=may_be_list,
        default=parameter.default,
        help=texts.get(name, ""),
        is_positional=name in about.get("words", () if parameter.kind is KEYWORD else (name,)),
        flags=tuple(told("flags", usual_flags)),
        switches=told("switches"),
        metavar=told("metavars", shared["metavars"].get(name, "")),
        complete=suggest(words) if is_suggested else None,
        marks=marks,
    )


def _flatten(annotation: Any) -> list[Any]:
    """The members of a union, without None."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [part for one in get_args(annotation) for part in _flatten(one)]
    return [] if annotation is type(None) else [annotation]


def _is_plain(part: Any) -> bool:
    return part in (str, int, float, bool, Path) or get_origin(part) is Literal


def _choose_kind(parts: list[Any]) -> Kind:
    """The type to parse on the command line: Path if the union has one. Types that only Python can
    pass are ignored."""
    plain = [part for part in parts if part in (str, int, float, bool, Path)]
    if Path in plain:
        return Path
    return plain[0] if plain else str


def _choices(parts: list[Any]) -> tuple[str, ...]:
    return tuple(value for part in parts if get_origin(part) is Literal for value in get_args(part))


class _Names(dict[str, Any]):
    """The namespace in which annotations are evaluated. A name imported only under TYPE_CHECKING
    becomes a placeholder type, which the command line cannot parse."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, None) or type(name, (), {})


def _evaluate(annotation: Any, function: Callable[..., Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    # safe: annotations are our own code
    return eval(annotation, {}, _Names(inspect.unwrap(function).__globals__))


def make_parameter(name: str, kind: Any, about: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, KEYWORD, default=default, annotation=Annotated[kind, about])


def _dashed(name: str) -> str:
    return name.replace("_", "-")


_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Examples?):$")
_ARGUMENT = re.compile(r"^ {4}(\w+): (.*)$")


class Docstring(NamedTuple):
    """A parsed docstring: `text` is everything before the first section, `arguments` the
    description of each argument by name."""

    text: str
    arguments: dict[str, str]


def read_docstring(function: Callable[..., Any]) -> Docstring:
    """Parse the docstring of a function. Settings in backticks become flags."""
    sections = _split(inspect.getdoc(function) or "")
    return Docstring(
        text=with_flags("\n".join(sections[""]).strip()),
        arguments={name: with_flags(text) for name, text in _arguments(sections.get("Args", []))},
    )


def _split(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {"": []}
    current = ""
    for line in text.splitlines():
        found = _SECTION.match(line)
        if found:
            current = found[1]
            sections[current] = []
        else:
            sections[current].append(line)
    return sections


def _arguments(lines: list[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for line in lines:
        match = _ARGUMENT.match(line)
        if match:
            found.append((match[1], match[2]))
        elif line.strip() and found:
            name, text = found[-1]
            found[-1] = (name, f"{text} {line.strip()}")
    return found
