"""Runs the command in this process and catches what it prints."""

import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from clew.cli import main
from tests.stores import one_thread


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """A capture takes over the signals of its process; here that is pytest's."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs `clew ARGUMENTS` in this process, wide enough that no line is broken."""
    monkeypatch.setenv("COLUMNS", "300")

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["clew", *map(str, arguments)])
        capfd.readouterr()
        try:
            with one_thread():
                main()
            code: Any = 0
        except SystemExit as end:
            code = end.code or 0
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return Ended(code, out, err)

    return call
