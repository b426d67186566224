"""Every setting that a message of the library names is a flag of some command."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import clew
from clew.cli import build_app
from clew.cli.errors import SETTING, flag

SOURCE = Path(clew.__file__).parent
# Settings that exist only in Python.
PYTHON_ONLY = {
    *("focal_gamma", "positive_weight", "precision", "prefetch_factor"),
    *("held_out", "shuffle", "shuffle_buffer_size", "size", "views"),
    *("fit", "needs", "family", "scorer"),  # of a method of one's own
}
LATER = "zqz"  # stands for what is filled in later


@pytest.mark.slow
def test_settings_in_messages_are_flags() -> None:
    known = {name for command in all_commands() for name in flags_of(command)}
    wrong = [
        f"{path.relative_to(SOURCE)}: {shown}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != "cli"
        for name, value in named_settings(ast.parse(path.read_text(encoding="utf-8")))
        if name not in PYTHON_ONLY
        if not is_known((shown := flag(name, value)).split()[0], known)
    ]
    assert not wrong, "\n".join(wrong)


def is_known(shown: str, known: set[str]) -> bool:
    pattern = re.compile(re.escape(shown).replace(LATER, "[a-z-]+"))
    return any(pattern.fullmatch(name) for name in known)


def all_commands() -> Iterator[Any]:
    waiting: list[Any] = [get_command(build_app())]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        yield command


def flags_of(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)


def named_settings(module: ast.Module) -> Iterator[tuple[str, str | None]]:
    """Between backticks in a string that is not a docstring, or as `setting=` of an error."""
    documented = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if id(node) in documented:
            continue
        if isinstance(node, ast.JoinedStr | ast.Constant):
            for found in SETTING.finditer(text_of(node)):
                yield found[1], found[2]
        if isinstance(node, ast.keyword) and node.arg == "setting":
            yield from ((text, None) for text in [text_of(node.value)] if text)


def text_of(node: ast.AST) -> str:
    """A string as it is written; what is filled in later is `LATER`."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or LATER for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.parametrize("text", ['"give `batch_sise`"', 'f"{a} `batch_sise={b}`"'])
def test_setting_without_a_flag_is_detected(text: str) -> None:
    assert [name for name, _ in named_settings(ast.parse(f"raise E({text})"))][0] == "batch_sise"
