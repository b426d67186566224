"""Ctrl-C and SIGTERM at any moment of a real process, from its first import on, and streams that
are closed, full or not UTF-8."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clew.cli.signals import Interrupted, interruptible, stop_on_signal
from tests.forking import HANGS_SECONDS
from tests.hallucination.labels.text_stores import trace_row, write_text_store

COMMAND = [sys.executable, "-m", "clew"]
SAFE = "clew: stopped. It is safe to run the same command again.\n"
OVER = "clew: stopped. Run the same command again to start over.\n"


# The command `clew`, which gets a signal when it first imports a module: always the same moment.
START = """
import os, sys

class Signal:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Signal())
from clew.__main__ import main
sys.argv = {words!r}
main()
"""


def signaled(
    number: int, module: str, *words: str, prepare: Callable[[], object] | None = None
) -> subprocess.CompletedProcess[str]:
    code = START.format(module=module, number=int(number), words=["clew", *words])
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_SECONDS,
        preexec_fn=prepare,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "module", "words", "said"),
    [
        (signal.SIGINT, "clew.cli", ("--help",), SAFE),
        (signal.SIGTERM, "typer", ("compare",), SAFE),
        (signal.SIGTERM, "clew.hallucination.comparison", ("compare",), "resume: clew compare\n"),
        (signal.SIGTERM, "torch", ("plan",), OVER),
        (signal.SIGINT, "pyarrow", ("preprocess", "a b"), "To resume: clew preprocess 'a b'\n"),
        (signal.SIGINT, "numpy", ("convert", ".", "--out", "b"), "clew convert . --out b\n"),
        (signal.SIGTERM, "pyarrow", ("inspect", "a"), OVER),
    ],
)
def test_signal_during_imports_ends_with_one_message(
    number: int, module: str, words: tuple[str, ...], said: str
) -> None:
    ended = signaled(number, module, *words)
    assert ended.returncode == 128 + number, ended.stderr
    assert ended.stdout == "" and ended.stderr.endswith(said)
    assert ended.stderr.startswith("clew: stopped.") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("words", "resumes"),
    [
        *((("preprocess", "a"), True), (("convert", "a", "--out", "b"), True)),
        *((("label", "a"), True), (("inspect", "a"), False), (("verify", "a"), False)),
        *((("show", "a", "--id", "1"), False), (("plan",), False)),
    ],
)
def test_interrupted_command_says_what_the_next_one_does(
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    resumes: bool,
    number: signal.Signals,
) -> None:
    monkeypatch.setattr(f"clew.cli.{words[0]}.{words[0]}", lambda **_: signal.raise_signal(number))
    ended = run(*words)
    assert (ended.code, ended.out) == (128 + number, "")
    resume = f"clew: stopped. To resume: clew {' '.join(words)}\n"
    assert ended.err == (resume if resumes else OVER)


@pytest.mark.slow
def test_ignored_signals_stay_ignored() -> None:
    """As after nohup, and for background jobs of a script."""
    number = signal.SIGINT

    def ignore() -> None:
        signal.signal(number, signal.SIG_IGN)

    ended = signaled(number, "clew.cli", "--version", prepare=ignore)
    assert ended.returncode == 0 and ended.stdout.startswith("clew ")


def in_a_fork(work: Callable[[], None]) -> tuple[int, str]:
    """The exit code of a copy of this process, and what it wrote to stderr."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        try:
            work()
        finally:
            os._exit(99)
    os.close(writing)
    with open(reading, encoding="utf-8") as told:
        text = told.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def test_second_signal_ends_a_command_that_is_still_cleaning_up() -> None:
    def clean_up_for_ever() -> None:
        with interruptible("stopped. To resume: clew x"):
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGTERM)

    assert in_a_fork(clean_up_for_ever) == (143, "clew: stopped. To resume: clew x\n")


def test_third_signal_ends_a_long_run_that_is_still_cleaning_up() -> None:
    from rich.console import Console

    def clean_up_for_ever() -> None:
        with stop_on_signal(Console(quiet=True), "saving", resume=" To resume: clew x"):
            signal.raise_signal(signal.SIGINT)
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)

    assert in_a_fork(clean_up_for_ever) == (130, "clew: stopped. To resume: clew x\n")


def test_signal_interrupts_a_command_with_its_number() -> None:
    with pytest.raises(Interrupted) as caught, interruptible("stopped."):
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.number == signal.SIGTERM


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [trace_row(i, "Malmö \N{SNOWMAN}", ["Malmö"]) for i in range(40)]
    return write_text_store(tmp_path_factory.mktemp("texts") / "store", rows)


@pytest.mark.slow
def test_reader_that_stops_early_is_no_error(store: Path) -> None:
    shell = f"{' '.join(COMMAND)} inspect {store} | head -1"
    ended = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=HANGS_SECONDS)
    assert ended.stdout.count("\n") == 1 and ended.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("words", [("inspect",), ("inspect", "--json")])
def test_terminal_without_unicode_gets_escapes(store: Path, words: tuple[str, ...]) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "200"}
    ended = subprocess.run(
        [*COMMAND, *words, store],
        capture_output=True,
        text=True,
        env=environment,
        timeout=HANGS_SECONDS,
    )
    assert ended.returncode == 0 and ended.stderr == ""
    assert ("Malm\\u00f6 \\u2603" if len(words) > 1 else "Malm\\xf6 \\u2603") in ended.stdout


@pytest.mark.slow
def test_closed_streams_are_not_mistaken_for_files(store: Path, tmp_path: Path) -> None:
    """Without a stdout, the next file that is opened would get its number, and its messages."""
    out = tmp_path / "scores.csv"
    shell = f"{' '.join(COMMAND)} label {store} --out {out} <&- >&- 2>&-"
    assert subprocess.run(shell, shell=True, timeout=HANGS_SECONDS).returncode == 0
    assert len(out.read_text().splitlines()) == 41


class InterruptedWrite(io.FileIO):
    """The first write gets a signal in the middle."""

    is_interrupted = False

    def write(self, data: Any) -> int:
        if not self.is_interrupted:
            self.is_interrupted = True
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(data)


def test_signal_in_the_middle_of_a_line_of_progress_stops_the_run_safely(tmp_path: Path) -> None:
    raw = InterruptedWrite(tmp_path / "said.txt", "w")
    with io.TextIOWrapper(io.BufferedWriter(raw)) as file:
        console = Console(file=file, width=200)
        with stop_on_signal(console, "everything is saved") as stop:
            console.print("epoch 1 of 20")
    assert stop.number == signal.SIGINT
    said = (tmp_path / "said.txt").read_text()
    assert "epoch 1 of 20\n" in said
    assert "stopping: everything is saved (press Ctrl-C again" in said
