"""Writes docs/commands.md from the commands' own help; a test holds the two together."""

from pathlib import Path

from typer.testing import CliRunner

from clew.cli import build_app

PAGE = Path(__file__).with_name("commands.md")
COMMANDS = (
    "extract",
    "inspect",
    "label",
    "preprocess",
    "plan",
    "train",
    "compare",
    "show",
    "verify",
    "convert",
    "patterns",
    "patterns flow",
    "patterns create",
    "patterns import",
    "patterns list",
    "patterns info",
    "patterns train",
    "patterns evaluate",
    "patterns identify",
    "patterns recognize",
    "patterns review",
    "patterns export",
)


def render() -> str:
    """The whole page."""
    parts = ["# Commands\n\nMade by `make docs` from what `--help` prints.\n"]
    for command in ("", *COMMANDS):
        words = command.split()
        parts.append(f"## clew {command}".rstrip() + f"\n\n```\n{_help(words)}\n```\n")
    return "\n".join(parts)


def _help(words: list[str]) -> str:
    environment = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    result = CliRunner().invoke(build_app(), [*words, "--help"], env=environment, prog_name="clew")
    return "\n".join(line.rstrip() for line in result.output.strip().splitlines())


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
