"""Work for workers that needs no model: squares of numbers, each in a file."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from clew.base.errors import InputError, StoppedError
from clew.base.progress import Note, Reporter, WorkAdvanced, WorkStarted
from clew.storage.leases import Claims, Leases, take_all
from clew.storage.places import open_place

UNITS = 12


def find_pending(folder: Path) -> list[int]:
    return [n for n in range(UNITS) if not (folder / f"{n}.txt").exists()]


def square(folder: Path, dying: int, reporter: Reporter, should_stop: Callable[[], bool]) -> int:
    """Squares what is pending; `dying` workers end with SIGKILL inside of their first unit."""
    claims = Claims(Leases(open_place(folder).child("leases")), lambda: find_pending(folder))
    reporter(WorkStarted(noun="squares", planned=UNITS, done=UNITS - len(claims.pending)))
    reporter(Note("all workers say this"))
    made = 0
    for claim in take_all(claims, should_stop):
        if len([*folder.glob("dead-*")]) < dying:
            (folder / f"dead-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with open(folder / f"{claim.number}.txt", "x", encoding="utf-8") as file:
            file.write(str(claim.number**2))
        claims.give_up(claim)
        reporter(WorkAdvanced(count=1))
        made += 1
    return made


def refuse(reporter: Reporter, should_stop: Callable[[], bool]) -> None:  # noqa: ARG001
    raise InputError("it must be odd.", setting="edges", value=2)


def wait_for_stop(folder: Path, reporter: Reporter, should_stop: Callable[[], bool]) -> None:
    reporter(WorkStarted(noun="squares", planned=UNITS))
    (folder / f"waiting-{os.getpid()}").touch()
    while not should_stop():
        time.sleep(0.01)
    (folder / f"stopped-{os.getpid()}").touch()
    raise StoppedError("stopped.")


def make_square(folder: Path) -> Callable[[int], int]:
    """A function that dies at multiples of 4, the first time."""

    def compute(number: int) -> int:
        marker = folder / f"dead-{number}"
        if number % 4 == 0 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if number > 100:
            raise InputError("it must be 100 or less.", setting="number", value=number)
        return number**2

    return compute


def die(reporter: Reporter, should_stop: Callable[[], bool]) -> None:  # noqa: ARG001
    os.kill(os.getpid(), signal.SIGKILL)
