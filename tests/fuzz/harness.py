"""Runs hostile inputs one by one, each in a forked process with limits, and says how it ended.

A case is a kind of input and a seed: the same two give the same bytes on every machine.
"""

import contextlib
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from tests.forking import FORKSERVER, fork

CPU_SECONDS = 10  # of the case alone, whatever else the machine does
_WAIT_SECONDS = 10  # for a pipe, a socket, a lock; not for a processor
_MEMORY_BYTES = 500_000_000
_ADDRESS_BYTES = 4_000_000_000  # the machine survives what fails
_KINDS_OF_DEATH = {
    signal.SIGXCPU: f"it used the CPU for more than {CPU_SECONDS} s",
    signal.SIGKILL: f"it waited for more than {_WAIT_SECONDS} s",
}

# Writes the input into a folder of its own and returns what a user would then do with it.
MakeCase = Callable[[Random, Path, Path], Callable[[], None]]


class Refused(Exception):  # noqa: N818 - an expected end
    """clew refused the input with one message."""


@dataclass(frozen=True)
class Outcome:
    """How one case ended; `about` is the message or the traceback."""

    kind: str
    seed: int
    ended: Literal["ok", "refused", "failed"]
    about: str
    cpu_seconds: float
    megabytes: int

    def __str__(self) -> str:
        return f"{self.kind} {self.seed}: {self.about}"


def try_cases(
    cases: Iterable[tuple[str, int]], corpus: Path, scratch: Path, *, keep: bool = False
) -> Iterator[Outcome]:
    """The outcome of each (kind, seed). They are forked from a process of their own that has the
    libraries loaded and no thread."""
    ours, theirs = FORKSERVER.Pipe()
    process = fork(_serve, theirs, corpus, scratch, keep)
    process.start()
    theirs.close()  # recv() ends if the process does
    try:
        for case in cases:
            ours.send(case)
            yield ours.recv()
        ours.send(None)
        process.join()
    finally:
        process.kill()
        process.join()


def _serve(connection: Any, corpus: Path, scratch: Path, keep: bool) -> None:
    from tests.fuzz.inputs import KINDS

    os.environ["COLUMNS"] = "300"
    outside = _look_at(corpus)
    while (case := connection.recv()) is not None:
        kind, seed = case
        folder = scratch / f"{kind}-{seed}"
        folder.mkdir(parents=True)
        outcome = _fork(KINDS[kind], kind, seed, corpus, folder)
        before, outside = outside, _look_at(corpus)
        changed = outside.items() ^ before.items()
        if changed:
            about = f"it changed {min(changed)[0]}\n{outcome.about}"
            outcome = replace(outcome, ended="failed", about=about)
        connection.send(outcome)
        if not keep:
            shutil.rmtree(folder)


def _look_at(folder: Path) -> dict[str, tuple[int, int]]:
    """The files below a folder with their sizes and times: a change shows."""
    status = ((str(path), path.lstat()) for path in folder.rglob("*"))
    return {name: (one.st_size, one.st_mtime_ns) for name, one in status}


def _fork(make: MakeCase, kind: str, seed: int, corpus: Path, folder: Path) -> Outcome:
    report = folder / "report.txt"
    child = os.fork()
    if child == 0:
        os._exit(_run_case(make, Random(f"{kind} {seed}"), corpus, folder, report))
    status, used = _wait(child)
    about = report.read_text() if report.exists() else ""
    ended: Literal["ok", "refused", "failed"] = "failed"
    if os.WIFSIGNALED(status):
        number = signal.Signals(os.WTERMSIG(status))
        about = _KINDS_OF_DEATH.get(number, f"{number.name} ended it") + f"\n{about}"
    elif os.WEXITSTATUS(status) < 2:
        ended = "refused" if os.WEXITSTATUS(status) else "ok"
    seconds = used.ru_utime + used.ru_stime
    more = max(0, used.ru_maxrss * 1024 - _own_memory())
    if more > _MEMORY_BYTES + _bytes_in(folder):
        ended, about = "failed", f"it took {more / 1e6:.0f} MB\n{about}"
    return Outcome(kind, seed, ended, about, seconds, round(more / 1e6))


def _wait(child: int) -> tuple[int, resource.struct_rusage]:
    """Waits for the end, and kills what sleeps for too long; on a busy machine, a process that
    could run does not sleep."""
    asleep, last_look = 0.0, time.monotonic()
    while True:
        pid, status, used = os.wait4(child, os.WNOHANG)
        if pid:
            return status, used
        time.sleep(0.005)
        if time.monotonic() - last_look > 0.5:
            asleep = asleep + 0.5 if _sleeps(child) else 0.0
            last_look = time.monotonic()
        if asleep > _WAIT_SECONDS:
            os.kill(child, signal.SIGKILL)


def _sleeps(process: int) -> bool:
    states = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread has just ended
        for task in Path(f"/proc/{process}/task").iterdir():
            states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states == {"S"}


def _run_case(make: MakeCase, chance: Random, corpus: Path, folder: Path, report: Path) -> int:
    """In the child: 0 if the input was used, 1 if it was refused with a message, 2 if it failed."""
    _limit()
    output = os.open(folder / "output.txt", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        make(chance, corpus, folder)()
    except Refused as error:
        report.write_text(str(error))
        return 1
    except BaseException:
        report.write_text(traceback.format_exc(limit=-12))
        return 2
    return 0


def _limit() -> None:
    # CPU seconds count from the start of the process; the fork has used none.
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _ADDRESS_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _own_memory() -> int:
    """What a fork has from the start."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _bytes_in(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def clew(*words: object) -> str:
    """The command in this process; returns what it printed. Raises Refused if it ended with a
    message, and what the command did not expect."""
    from clew.cli import main

    sys.argv = ["clew", *map(str, words)]
    begin = os.lseek(1, 0, os.SEEK_END)
    try:
        main()
        code: Any = 0
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    said = _printed_since(begin)
    if code:
        assert code in (1, 2), f"exit code {code}: {said}"
        assert said.strip(), "it ended without a message"
        raise Refused(said)
    return said


def _printed_since(begin: int) -> str:
    raw = os.pread(1, 1 << 22, begin)
    said = raw.decode()
    unsafe = [c for c in said if (c < " " and c not in "\n\t\r") or 0x7F <= ord(c) < 0xA0]
    assert not unsafe, f"unsafe characters {unsafe[:5]} reached the terminal: {said[:2000]!r}"
    assert "Traceback (most recent call last)" not in said, said[-4000:]
    return said
