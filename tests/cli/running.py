"""Runs the command in this process and catches what it prints."""

import functools
import signal
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import typer.main

from clew.cli import main
from tests.stores import one_thread

# Typer reads the signatures of all commands for each call; once is enough for a test run.
_get_command = functools.cache(typer.main.get_command)


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs `clew ARGUMENTS` in this process, wide enough that no line is broken."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(typer.main, "get_command", _get_command)

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["clew", *map(str, arguments)])
        capfd.readouterr()
        before = _handlers()
        try:
            with one_thread():
                main()
            code: Any = 0
        except SystemExit as end:
            code = end.code or 0
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        assert _handlers() == before
        return Ended(code, out, err)

    return call


def _handlers() -> list[Any]:
    """A command that takes over signals gives them back: here they are pytest's."""
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
