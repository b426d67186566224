"""Writes docs/commands.md from what `--help` prints; a test keeps the two equal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from clew.cli import build_app

PAGE = Path(__file__).with_name("commands.md")


def render() -> str:
    """The whole page."""
    parts = ["# Commands\n\nWhat `--help` prints, written by `make docs`.\n"]
    for words in _each_command(get_command(build_app())):
        parts.append(f"## {' '.join(['clew', *words])}\n\n```\n{_help(words)}\n```\n")
    return "\n".join(parts)


def _each_command(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command, in the order of the help; a group comes before its commands."""
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from _each_command(inner, (*words, name))


def _help(words: tuple[str, ...]) -> str:
    environment = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    result = CliRunner().invoke(build_app(), [*words, "--help"], env=environment, prog_name="clew")
    return "\n".join(line.rstrip() for line in result.output.strip().splitlines())


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
