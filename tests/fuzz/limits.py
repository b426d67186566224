"""Runs long commands where something is missing (disk, memory, permissions, a home), then without
the limit: a message first, the files of an uninterrupted run afterwards."""

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from tests.forking import call_forked
from tests.fuzz.kills import Run, Words, compare_folders, prepared

_NOBODY = 65534
# A limit may lie above what a command needs, but what may not be written can never succeed. Arrow's
# and PyTorch's own threads end the process if they get no memory.
_ANY_END, _MESSAGE = (0, 1, 2), (1, 2)
_ABORTED = (*_ANY_END, -signal.SIGABRT)
_FILLER = "somebody elses"


def small_files(chance: Random, folder: Path) -> None:
    """As `ulimit -f` and quotas do it: a write beyond the limit fails with EFBIG."""
    del folder
    size = int(2 ** chance.uniform(0, 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def little_memory(chance: Random, folder: Path) -> None:
    """As `ulimit -v`."""
    del folder
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + int(2 ** chance.uniform(20, 30))
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def few_files(chance: Random, folder: Path) -> None:
    """As `ulimit -n`."""
    del folder
    most = len(os.listdir("/proc/self/fd")) + chance.randrange(2, 40)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def read_only(chance: Random, folder: Path) -> None:
    """A folder that belongs to somebody else, as a user who may only read it."""
    del chance
    folder.parent.chmod(0o755)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    else:
        folder.parent.chmod(0o555)


def no_home(chance: Random, folder: Path) -> None:
    """No home, no folder for temporary files, and a working folder that does not exist anymore."""
    del chance
    gone = folder.parent / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    os.environ.pop("HOME", None)
    for name in ("TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME"):
        os.environ[name] = "/nonexistent"


def full_disk(chance: Random, folder: Path) -> None:
    """Another program has filled the disk, up to some bytes."""
    filler = folder.parent / _FILLER
    space = shutil.disk_usage(folder.parent).free - int(2 ** chance.uniform(10, 20))
    assert space < 1 << 27, "this is not the small disk that was mounted"
    filler.write_bytes(bytes(max(0, space)))


def _can_mount() -> bool:
    """Root in a container often may not. The machine's own disk is never filled instead."""
    trial = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    may = os.getuid() == 0 and shutil.which("unshare") is not None
    return may and subprocess.run(trial, capture_output=True).returncode == 0


# Called in the new process before the command.
Limit = Callable[[Random, Path], None]
LIMITS: tuple[Limit, ...] = (
    *(small_files, little_memory, few_files, read_only, no_home),
    *((full_disk,) if _can_mount() else ()),
)


_ENDS = {read_only: _MESSAGE, little_memory: _ABORTED}


def limit_and_resume(
    command: str,
    rounds: int,
    seed: int,
    corpus: Path,
    folder: Path,
    limits: Sequence[Limit] = LIMITS,
) -> list[str]:
    """The problems that were found."""
    for place in (corpus, folder):
        _let_others_read(place)
    with prepared(command, corpus) as words:
        problems: list[str] = call_forked(_serve, words, rounds, seed, corpus, folder, limits)
    return problems


def _let_others_read(folder: Path) -> None:
    """The folders of pytest and of `mkdtemp` are closed to the user that `read_only` becomes."""
    for place in (folder, *folder.parents):
        status = place.stat()
        if status.st_uid == os.getuid() and status.st_mode & 0o055 != 0o055:
            place.chmod(status.st_mode | 0o055)


def _serve(
    connection: Any,
    words: Words,
    rounds: int,
    seed: int,
    corpus: Path,
    folder: Path,
    limits: Sequence[Limit],
) -> None:
    whole = Run(words, corpus, folder / "whole")
    whole.wait()
    problems = whole.problems()
    for number, limit in product(range(seed, seed + rounds), limits):
        with _disk(folder / f"{limit.__name__}-{number}", is_small=limit is full_disk) as home:
            found = _limit_once(words, corpus, home / "out", limit, number)
            found = found or compare_folders(home / "out", whole.out)
            problems += [f"{limit.__name__} {number}: {problem}" for problem in found]
    connection.send(problems)


def _limit_once(
    words: Words,
    corpus: Path,
    out: Path,
    limit: Limit,
    seed: int,
) -> list[str]:
    chance = Random(f"{limit.__name__} {seed}")
    limited = Run(words, corpus, out, before=lambda: limit(chance, out))
    limited.wait()
    out.parent.chmod(0o755)
    (out.parent / _FILLER).unlink(missing_ok=True)
    found = limited.problems(_ENDS.get(limit, _ANY_END))
    again = Run(words, corpus, out)
    again.wait()
    return found or again.problems()


@contextmanager
def _disk(folder: Path, *, is_small: bool) -> Iterator[Path]:
    """A new folder, on a disk of its own if it is to be filled; it is removed afterwards."""
    folder.mkdir()
    if is_small:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
        subprocess.run(mount, capture_output=True, check=True)
    try:
        yield folder
    finally:
        if is_small:
            subprocess.run(["umount", str(folder)], check=True)
        shutil.rmtree(folder)
