"""The `clew` command line: one module per command, which parses options, calls the library and
prints the result."""

import sys
from functools import cache
from importlib import import_module

import typer

from clew.base.errors import ClewError
from clew.cli.errors import exit_with
from clew.cli.help import HelpGroup
from clew.version import __version__

SUMMARY = "Detect LLM hallucinations from hidden states and attention."
# In the order in which people need them.
_COMMANDS = (
    *("extract", "inspect", "label", "preprocess", "plan", "train", "compare", "ask", "score"),
    *("check", "calibrate", "adapt", "show", "serve", "push", "verify", "convert"),
)
_PHOTOS = "patterns"
_OUT_OF_MEMORY = (
    "out of memory. Everything written so far is kept. Free some memory or choose smaller "
    "settings, then run the same command again."
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"clew {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(  # noqa: ARG001 - typer calls _show_version
        False, "-V", "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Detect LLM hallucinations from hidden states and attention."""


@cache
def build_app(only: str = "") -> typer.Typer:
    """The application with all its commands; or with one of them, which starts faster."""
    app = typer.Typer(
        name="clew",
        cls=HelpGroup,
        help=SUMMARY,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in _COMMANDS:
        if only in (name, ""):
            module = import_module(f"clew.cli.{name}")
            module.COMMAND.register(app, module.run)
    if only in (_PHOTOS, ""):
        from clew.cli.patterns import build_group

        app.add_typer(build_group(), name=_PHOTOS)
    return app


def main() -> None:
    """Entry point. Expected errors (ClewError, OSError, out of memory) are printed as one message,
    without a traceback."""
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        build_app(first if first in (*_COMMANDS, _PHOTOS) else "")()
    except (ClewError, OSError) as error:
        exit_with(error)
    except (MemoryError, RuntimeError) as error:
        from clew.base.memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        error.__traceback__ = None  # frees what the command held
        exit_with(ClewError(_OUT_OF_MEMORY))
