"""Parses Google-style docstrings into help texts: what a function does and each argument."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clew.cli.errors import with_flags

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
