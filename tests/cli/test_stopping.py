"""Ctrl-C and SIGTERM in a long run."""

import signal
from collections.abc import Iterator

import pytest
from rich.console import Console

from clew.cli.stopping import StopOnSignal


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """pytest's own are back afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_asks_and_a_later_one_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    stop = StopOnSignal(Console(), "saving", is_passed_on=True)
    assert not stop()
    signal.raise_signal(signal.SIGTERM)
    assert stop() and stop.number == signal.SIGTERM
    signal.raise_signal(signal.SIGINT)  # the same Ctrl-C, passed on by torchrun
    now += 2
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().out == "stopping: saving (again to stop at once)\n"


def test_without_torchrun_every_signal_is_one_of_its_own() -> None:
    StopOnSignal(Console(quiet=True), "saving")
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
