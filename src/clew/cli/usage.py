"""Usage errors found by typer, reported in the same form as clew's own errors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from clew.base.errors import InputError
from clew.base.texts import find_close, for_terminal

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
