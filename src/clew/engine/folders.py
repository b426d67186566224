"""The output folder of a run: its files, its lock, how it is created and emptied."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import Timeout

from clew.base.errors import InputError, StoreLockedError
from clew.base.urls import UrlPath
from clew.engine.processes import is_first_process
from clew.storage.ownership import claim
from clew.storage.places import AccessDeniedError
from clew.storage.url_lock import lone_lease
from clew.storage.working_copy import WorkingCopy, find_files
from clew.storage.writing import lock_file, remove_temporaries

# A run resumes from `last`, `best` has the weights to use, `next best` waits for its `last`.
LAST, BEST, NEXT_BEST = "last.safetensors", "best.safetensors", "best.next.safetensors"
PLAN, RESULT, LOG, CURVES = "plan.json", "result.json", "log.csv", "curves.png"
TENSORBOARD, EVENTS = "tensorboard", "events.out.tfevents."
TRACKING = "tracking.json"  # the ID of the run in each experiment tracker
_FILES = (LAST, BEST, NEXT_BEST, PLAN, RESULT, LOG, CURVES, TRACKING)
# What training writes; anything else in the folder belongs to somebody else.
RUN_FILES = (*_FILES, TENSORBOARD)


def make_folder(folder: Path, *names: str, command: str = "") -> None:
    """Create the folder, into which files and folders of these names will be written. Raises
    InputError if that is not possible, or if somebody else's has one of the names."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f'the folder "{folder}" cannot be created ({error.strerror}): choose another `out`.'
        ) from None
    claim(folder, names, command=command)


def clear_run(folder: Path, *more: str) -> None:
    """Removes what an earlier run wrote into a network's folder, and the additional files named in
    `more`. Raises InputError if somebody else wrote one of them."""
    claim(folder, (*RUN_FILES, *(name for name in more if "/" not in name)))
    for name in (*_FILES, *more):
        (folder / name).unlink(missing_ok=True)
    remove_temporaries(folder, *_FILES)
    remove_events(folder / TENSORBOARD)
    with suppress(OSError):  # it is not there, or has other files
        (folder / TENSORBOARD).rmdir()


def remove_events(board: Path) -> None:
    """Removes TensorBoard's files of an earlier run, as far as that is allowed."""
    for path in find_files(board, EVENTS):
        with suppress(AccessDeniedError):
            path.unlink()


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
