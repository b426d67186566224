"""The `clew` command line: one module per command, which parses options, calls the library and
prints the result."""

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
    *("check", "calibrate", "adapt", "show", "serve", "verify", "convert"),
)
_OUT_OF_MEMORY = (
    "out of memory. Everything written so far is kept. Free some memory or choose smaller "
    "settings, then run the same command again."
)
app = typer.Typer(
    name="clew",
    cls=HelpGroup,
    help=SUMMARY,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"clew {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(  # noqa: ARG001 - typer calls _show_version
        False, "-V", "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Detect LLM hallucinations from hidden states and attention."""


def build_app() -> typer.Typer:
    """The application with all its commands."""
    from clew.cli.patterns import build_group

    if not app.registered_commands:
        for name in _COMMANDS:
            module = import_module(f"clew.cli.{name}")
            module.COMMAND.register(app, module.run)
        app.add_typer(build_group(), name="patterns")
    return app


def main() -> None:
    """Entry point. Expected errors (ClewError, OSError, out of memory) are printed as one message,
    without a traceback."""
    try:
        build_app()()
    except (ClewError, OSError) as error:
        exit_with(error)
    except (MemoryError, RuntimeError) as error:
        from clew.base.memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        error.__traceback__ = None  # frees what the command held
        exit_with(ClewError(_OUT_OF_MEMORY))
