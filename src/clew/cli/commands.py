"""Turns a Python function into a command: options from its signature, help from its docstring, and
the flags that every command has."""

import inspect
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from clew.base.errors import ClewError, InputError
from clew.base.settings import check_least
from clew.base.terminal import TextConsole
from clew.base.texts import for_json, for_terminal
from clew.base.typed_json import without_nan
from clew.base.urls import as_path
from clew.cli.errors import flag, naming_arguments, read_texts
from clew.cli.help import GENERAL, HelpCommand
from clew.cli.options import (
    KEYWORD,
    REST,
    SWITCH,
    Setting,
    make_parameter,
    read_docstring,
    read_settings,
)
from clew.cli.renderer import Renderer
from clew.cli.run_config import INT_LIMIT, read_config, refuse_unrecorded
from clew.cli.signals import (
    log_to_stderr,
    long_run,
    saying_how_it_was_stopped,
    shown_log,
)

Run = Callable[["Call"], None]
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One invocation of a command. `settings` are the arguments of its function, `given` the names
    of those set by flags or a config file. Results are printed to `console`, progress messages to
    `progress`. `about` is the command's table in commands.toml."""

    settings: dict[str, Any]
    given: frozenset[str]
    as_json: bool
    console: Console
    progress: Console
    about: Mapping[str, Any]

    def run(self, function: Callable[..., Any], **changes: Any) -> Any:
        """Call the command's function with the settings and `changes`, and show its progress. If
        commands.toml says how it stops, signals stop it like that."""
        settings = {**self.settings, **changes}
        with ExitStack() as stack:
            if "stopping" in self.about:
                overwrite = settings.get("overwrite", False)
                running = long_run(self.progress, self.about["stopping"], overwrite=overwrite)
                settings["should_stop"] = stack.enter_context(running)
            if "shows_log" in self.about:
                stack.enter_context(shown_log(self.progress))
            settings["reporter"] = stack.enter_context(Renderer(self.progress))
            return function(**settings)

    def print_json(self, value: Any, indent: int | None = 1) -> None:
        """Print `value` as JSON, at once: with --json, the only output on stdout. Commands with
        many results print each on one line, without `indent`."""
        is_unicode = (sys.stdout.encoding or "").lower() in ("utf-8", "utf8")
        text = json.dumps(
            without_nan(value),
            indent=indent,
            ensure_ascii=not is_unicode,
            allow_nan=False,
            default=str,
        )
        typer.echo(for_json(text))
        sys.stdout.flush()


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command made from `function`, as typed after "clew" ("patterns train"). `about` is its
    table in commands.toml."""

    function: Callable[..., Any]
    words: str
    about: Mapping[str, Any]

    @property
    def groups(self) -> dict[str, list[str]]:
        """The names of its arguments by heading; those without one come first, under "Options"."""
        shared = read_texts()["settings"]["groups"]
        return {name: of or shared[name] for name, of in self.about.get("groups", {}).items()}

    def read_settings(self) -> list[Setting]:
        return read_settings(self.function, self.about)

    def register(self, app: typer.Typer, run: Run) -> None:
        """Add the command to an application; `run` is called with the parsed `Call`."""
        app.command(
            name=self.words.split()[-1],
            cls=HelpCommand,
            help=f"{read_docstring(self.function).text} {self.about.get('note', '')}".rstrip(),
            epilog=self.about["example"],
            context_settings={"help_option_names": ["-h", "--help"]},
        )(self._callback(run))

    def _callback(self, run: Run) -> Callable[..., None]:
        settings, is_resumable = self.read_settings(), self.about.get("is_resumable", False)
        titles = {one.name: one.title for one in settings if one.is_positional}

        def callback(invocation: typer.Context, **given: Any) -> None:
            overwrite = given.get("overwrite", False)
            stopped = saying_how_it_was_stopped(is_resumable=is_resumable, overwrite=overwrite)
            with stopped, naming_arguments(titles):
                call = self._read_call(invocation, given, settings)
                _show_errors_in_full(run, call, verbose=given["verbose"])

        # collects words without a flag
        rest = make_parameter(REST, list[Path] | None, typer.Argument(hidden=True), None)
        parameters = [
            inspect.Parameter("invocation", KEYWORD, annotation=typer.Context),
            *self._parameters(settings),
            *([rest] if "takes_rest" in self.about else []),
            *self._common_parameters(),
        ]
        # typer reads the options from the signature.
        callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        callback.__annotations__ = {one.name: one.annotation for one in parameters}
        return callback

    def _parameters(self, settings: list[Setting]) -> list[inspect.Parameter]:
        """The parameters for typer: ungrouped ones first, then group by group."""
        panels = {name: panel for panel, names in self.groups.items() for name in names}
        order = {name: place for place, name in enumerate(panels)}
        ordered = sorted(settings, key=lambda one: order.get(one.name, -1))
        return [found for one in ordered for found in one.parameters(panels.get(one.name))]

    def _common_parameters(self) -> list[inspect.Parameter]:
        """The flags that every command has, and --threads and --json for those that say so."""
        found = []
        for name, (text, metavar, *flags) in read_texts()["settings"]["general"].items():
            if f"has_{name}" not in self.about and name in ("threads", "json"):
                continue
            kind: Any = {"N": int | None, "PATH": Path | None}.get(metavar, bool)
            option = typer.Option(
                *flags, help=text, rich_help_panel=GENERAL, metavar=metavar or None
            )
            found.append(make_parameter(name, kind, option, False if kind is bool else None))
        return found

    def _read_call(
        self, context: typer.Context, given: dict[str, Any], settings: list[Setting]
    ) -> Call:
        as_json, quiet = given.get("json", False), given["quiet"]
        if given["verbose"]:
            log_to_stderr()
            logging.getLogger("clew").setLevel(logging.DEBUG)
        values = self._merge(context, given, settings)
        threads = values.get("threads", given.get("threads"))
        if threads is not None:
            use_threads(threads)
        return Call(
            settings={one.name: _with_urls(values.get(one.name, one.default)) for one in settings},
            given=frozenset(values),
            as_json=as_json,
            console=TextConsole(soft_wrap=True, stderr=as_json),
            progress=TextConsole(soft_wrap=True, stderr=as_json, quiet=quiet),
            about=self.about,
        )

    def _merge(
        self, context: typer.Context, given: dict[str, Any], settings: list[Setting]
    ) -> dict[str, Any]:
        """Merge the settings from flags and config file; flags take precedence."""
        values: dict[str, Any] = {}
        if given["config"] is not None:
            typed = [one.name for one in settings if _is_typed(context, one.name)]
            run = read_config(given["config"], self.words, settings, typed)
            values = dict(run.settings)
            flags = _from_flags(context, given, settings, values)
            refuse_unrecorded(run, {**values, **flags}, settings)
        else:
            flags = _from_flags(context, given, settings, values)
        values |= flags
        if given.get(REST):
            self._add_rest(values, given[REST])
        for setting in settings:
            if setting.is_required and setting.name not in values:
                kind = "argument" if setting.is_positional else "option"
                context.fail(f"Missing {kind} '{setting.title}'.")
        return values

    def _add_rest(self, values: dict[str, Any], words: list[Path]) -> None:
        name = self.about["takes_rest"]
        if not values.get(name):
            raise InputError(
                f'unexpected argument "{words[0]}". To pass several folders, list them after '
                f"{flag(name)}."
            )
        values[name] = [*values[name], *words]


def read_command(function: Callable[..., Any], words: str = "") -> Command:
    """The command of a function, by default with its name."""
    words = words or function.__name__
    return Command(function=function, words=words, about=read_texts()[words])


def _with_urls(value: Any) -> Any:
    """The parser has made paths of URLs too, with one slash less."""
    if isinstance(value, list):
        return [_with_urls(one) for one in value]
    return as_path(value) if isinstance(value, Path) else value


def _from_flags(
    context: typer.Context,
    given: dict[str, Any],
    settings: list[Setting],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """The settings typed on the command line. A switch adds to, or removes from, the list in the
    config file or the default list."""
    values: dict[str, Any] = {}
    for setting in settings:
        if setting.switches is None:
            if _is_typed(context, setting.name):
                values[setting.name] = _refuse_huge(setting, given[setting.name])
            continue
        chosen = {*config.get(setting.name, setting.default)}
        typed = [one for one in setting.switches if _is_typed(context, f"{SWITCH}{one}")]
        for one in typed:
            (chosen.add if given[f"{SWITCH}{one}"] else chosen.discard)(one)
        if typed:
            values[setting.name] = tuple(one for one in setting.switches if one in chosen)
    return values


def _refuse_huge(setting: Setting, value: Any) -> Any:
    """No library that gets it could take such an integer."""
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, int) and abs(one) >= INT_LIMIT:
            raise InputError("it is too large.", setting=setting.name, value=one)
    return value


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _show_errors_in_full(run: Run, call: Call, *, verbose: bool) -> None:
    try:
        run(call)
    except (ClewError, OSError):
        if verbose:
            print(for_terminal(traceback.format_exc(), lines=True), end="", file=sys.stderr)
        raise


def use_threads(count: int) -> None:
    """Limit the CPU threads of this process. The libraries read these variables when they are
    loaded."""
    check_least("threads", count)
    for name in _THREAD_VARIABLES:
        os.environ[name] = str(count)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(count)
