"""Turns a function into the options of a command: types, flags and defaults from its signature,
help from its Google-style docstring."""

import builtins
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from clew.base.urls import is_url
from clew.cli.errors import flag, with_flags
from clew.cli.help import Complete, suggest_words, suggest_words_and_paths
from clew.storage.run_file import WATCHING, NeverFromFile, UrlNeverFromFile

REST = "rest"
Kind = type[str] | type[int] | type[float] | type[bool] | type[Path]
# The heading of the flags that override the hardware plan, in all commands that train.
HARDWARE = {
    "Hardware (chosen by measurement unless set)": (
        *("device", "amp", "compile", "cuda_graph", "channels_last", "num_workers"),
        *("batch_size", "grad_accum", "gradient_checkpointing", "max_cache_batches", "threads"),
    )
}
# That of the flags for the cache, in all commands that read stores.
CACHE = {"Stores at URLs": ("cache_dir", "cache_size")}
# What the shell suggests in all commands.
_COMPLETIONS = {
    "device": suggest_words("cpu", "cuda"),
    "device_map": suggest_words_and_paths("auto", "balanced", "balanced_low_0", "sequential"),
}
_METAVARS: dict[Kind, str] = {str: "TEXT", int: "N", float: "X", Path: "PATH"}


@dataclass(frozen=True, kw_only=True)
class Switches:
    """Turns an argument that takes a list of choices into one pair of flags per choice: `networks`
    becomes --run-lstm/--no-run-lstm, ... `choices` maps each choice to its help text."""

    choices: Mapping[str, str]
    prefix: str = "run_"

    def name(self, choice: str) -> str:
        return f"{self.prefix}{choice}"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One argument of a function. `default` is `Parameter.empty` where it has none."""

    name: str
    kind: Kind
    choices: tuple[str, ...]
    is_list: bool
    may_be_list: bool
    default: Any
    help: str
    is_positional: bool
    flags: tuple[str, ...]
    switches: Switches | None = None
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
            return [_parameter(self.name, self._type(), self._argument(), None)]
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
        return [_parameter(self.name, self._type(), option, default)]

    def _switch_parameters(self, switches: Switches, panel: str | None) -> list[inspect.Parameter]:
        found = []
        for choice, text in switches.choices.items():
            name = switches.name(choice)
            on = _dashed(name)
            option = typer.Option(f"--{on}/--no-{on}", help=text, rich_help_panel=panel)
            found.append(_parameter(name, bool, option, choice in self.default))
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


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How a command's options differ from the signature of its function: additional flags, types,
    metavars, switches and what the shell suggests, by argument. `words` names the positional
    arguments if they are not those of the function. `takes_rest` names the argument that also takes
    the words after its flag: --stores A B C.
    """

    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    metavars: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, Switches] = field(default_factory=dict)
    completions: Mapping[str, Complete] = field(default_factory=dict)
    takes_rest: str = ""
    words: tuple[str, ...] | None = None


def read_settings(function: Callable[..., Any], spelling: Spelling) -> list[Setting]:
    """The settings of a function in the order of its signature."""
    texts = read_docstring(function).arguments
    return [
        _read(parameter, _evaluate(parameter.annotation, function), texts, spelling)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in WATCHING
    ]


def _read(
    parameter: inspect.Parameter, annotation: Any, texts: Mapping[str, str], spelling: Spelling
) -> Setting:
    name = parameter.name
    marks = getattr(annotation, "__metadata__", ())
    parts = _flatten(get_args(annotation)[0] if marks else annotation)
    lists = [part for part in parts if get_origin(part) in (Sequence, list, tuple)]
    singles = [part for part in parts if part not in lists]
    may_be_list = bool(lists)
    if lists and not any(_is_plain(part) for part in singles):
        singles = [inner for part in lists for inner in _flatten(get_args(part)[0])]
    is_list = may_be_list and name not in spelling.kinds
    return Setting(
        name=name,
        kind=spelling.kinds.get(name) or _choose_kind(singles),
        choices=_choices(singles),
        is_list=is_list,
        may_be_list=may_be_list,
        default=parameter.default,
        help=texts.get(name, ""),
        is_positional=_is_positional(parameter, spelling),
        flags=spelling.flags.get(name, ()) or _usual_flags(name),
        switches=spelling.switches.get(name),
        metavar=spelling.metavars.get(name, ""),
        complete=spelling.completions.get(name) or _COMPLETIONS.get(name),
        marks=marks,
    )


def _is_positional(parameter: inspect.Parameter, spelling: Spelling) -> bool:
    if spelling.words is not None:
        return parameter.name in spelling.words
    return parameter.kind is not inspect.Parameter.KEYWORD_ONLY


def _usual_flags(name: str) -> tuple[str, ...]:
    return ("--out", "--output-dir") if name == "out" else (flag(name),)


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


def rest_parameter() -> inspect.Parameter:
    """The hidden parameter that collects words without a flag."""
    return _parameter(REST, list[Path] | None, typer.Argument(hidden=True), None)


def _parameter(name: str, kind: Any, about: Any, default: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, about])


def _dashed(name: str) -> str:
    return name.replace("_", "-")


_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Examples?):$")
_ARGUMENT = re.compile(r"^ {4}(\w+): (.*)$")


@dataclass(frozen=True, kw_only=True)
class Docstring:
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
