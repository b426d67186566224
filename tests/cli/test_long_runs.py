"""Ctrl-C and SIGTERM in a long run, and its errors."""

import logging
import signal

import pytest
import typer
from rich.console import Console

from clew.base.errors import InputError, TrainingStoppedError
from clew.cli.signals import long_run, shown_log, stop_on_signal

Capture = pytest.CaptureFixture[str]


def test_first_signal_asks_to_stop_and_second_stops_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with stop_on_signal(Console(), "saving", is_passed_on=True) as stop:
        assert not stop()
        signal.raise_signal(signal.SIGTERM)
        assert stop() and stop.number == signal.SIGTERM
        signal.raise_signal(signal.SIGINT)  # the same Ctrl-C, forwarded by torchrun
        now += 2
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().out == "stopping: saving (press Ctrl-C again to stop immediately)\n"


def test_without_torchrun_every_signal_counts() -> None:
    with stop_on_signal(Console(quiet=True), "saving"):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_previous_handlers_are_restored_after_an_error() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(InputError), stop_on_signal(Console(quiet=True), "saving"):
        assert [signal.getsignal(number) for number in numbers] != before
        raise InputError("no")
    assert [signal.getsignal(number) for number in numbers] == before


def test_stopped_run_exits_with_the_signal_and_the_command_to_resume(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("sys.argv", ["clew", "train", "--overwrite", "--output-dir", "my results"])
    with (
        pytest.raises(typer.Exit) as end,
        long_run(Console(width=300), "saving", overwrite=True) as stop,
    ):
        signal.raise_signal(signal.SIGTERM)
        assert stop()
        raise TrainingStoppedError("stopped after step 3.")
    assert end.value.exit_code == 128 + signal.SIGTERM
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("stopped after step 3. To resume: ")
    assert said.endswith("To resume: clew train --output-dir 'my results'")


def test_second_signal_says_how_to_resume(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.argv", ["clew", "extract", "--out", "tr"])
    with pytest.raises(typer.Exit) as end, long_run(Console(width=300), "finishing the batch"):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert end.value.exit_code == 128 + signal.SIGINT
    assert capsys.readouterr().out.splitlines()[-1] == ("stopped. To resume: clew extract --out tr")


def test_only_the_first_process_reports_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TORCHELASTIC_RUN_ID", "run"), ("WORLD_SIZE", "2"), ("RANK", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(typer.Exit) as end, long_run(Console(), ""):
        raise InputError("no samples")
    assert end.value.exit_code == 2
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InputError), long_run(Console(), ""):
        raise InputError("no samples")


def test_command_in_a_script_of_torchrun_that_hides_the_others_is_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError), long_run(Console(), ""):
        raise InputError("no samples")


def test_log_shows_flags_and_each_message_once(capsys: Capture) -> None:
    with shown_log(Console(width=300)):
        for _ in range(2):
            logging.getLogger("clew.loading").info("reading slowly: give `num_workers=4`")
    said = capsys.readouterr().out
    assert said.count("reading slowly: give --num-workers 4") == 1
