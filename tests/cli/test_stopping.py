"""Ctrl-C and SIGTERM in a long run."""

import signal

import pytest
from rich.console import Console

from clew.cli.stopping import StopOnSignal


def test_the_first_asks_and_a_later_one_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    stop = StopOnSignal(Console(), "saving")
    assert not stop()
    signal.raise_signal(signal.SIGTERM)
    assert stop() and stop.number == signal.SIGTERM
    signal.raise_signal(signal.SIGINT)  # the same Ctrl-C, passed on by torchrun
    now += 2
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().out == "stopping: saving (again to stop at once)\n"
