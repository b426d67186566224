"""The output folder of a run: its files, its lock, how it is created and emptied."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import Timeout

from clew.engine.processes import is_first_process
from clew.errors import InputError, StoreLockedError
from clew.storage.places import AccessDeniedError
from clew.storage.url_lock import lone_lease
from clew.storage.working_copy import WorkingCopy, find_files
from clew.storage.writing import lock_file, remove_temporaries, replace_file
from clew.typed_json import to_json
from clew.urls import UrlPath

# A run resumes from `last`, `best` has the weights to use, `next best` waits for its `last`.
LAST, BEST, NEXT_BEST = "last.safetensors", "best.safetensors", "best.next.safetensors"
PLAN, RESULT, LOG, CURVES = "plan.json", "result.json", "log.csv", "curves.png"
TENSORBOARD, EVENTS = "tensorboard", "events.out.tfevents."
TRACKING = "tracking.json"  # the ID of the run in each experiment tracker
# What training writes; anything else in the folder belongs to somebody else.
_LEFT_BEHIND = (LAST, BEST, NEXT_BEST, PLAN, RESULT, LOG, CURVES, TRACKING)


def make_folder(folder: Path) -> None:
    """Create the folder; raises InputError if that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f'the folder "{folder}" cannot be created ({error.strerror}): choose another `out`.'
        ) from None


def clear_run(folder: Path, *more: str) -> None:
    """Removes what an earlier run wrote into a network's folder, and the additional files named in
    `more`."""
    for name in (*_LEFT_BEHIND, *more):
        (folder / name).unlink(missing_ok=True)
    remove_temporaries(folder)
    remove_events(folder / TENSORBOARD)
    shutil.rmtree(folder / TENSORBOARD, ignore_errors=True)


def remove_events(board: Path) -> None:
    """Removes TensorBoard's files of an earlier run, as far as that is allowed."""
    for path in find_files(board, EVENTS):
        with suppress(AccessDeniedError):
            path.unlink()


def write_json(path: Path, value: Any) -> None:
    replace_file(path, f"{to_json(value, indent=1)}\n".encode())


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder; raises StoreLockedError if another run is writing into
    it."""
    if not is_first_process():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(folder, WorkingCopy):
        with lone_lease(UrlPath(folder.url)):
            yield
        return
    lock = lock_file(folder / ".lock", timeout_seconds=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise StoreLockedError(
            f'another run is writing to "{folder}": wait until it finishes, or choose another '
            "folder."
        ) from error
    try:
        yield
    finally:
        lock.release()
