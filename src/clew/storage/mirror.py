"""Stores at URLs, read through a bounded folder on this machine that all of its processes share:
small files are copied when a store is opened, shards when they are needed (`mirror_cache`)."""

import errno
import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path, PosixPath
from typing import Annotated, Any, TypedDict, TypeVar

import platformdirs

from clew.base.errors import ClewError, DiskFullError, InputError, StoreError
from clew.base.python_processes import start_function
from clew.base.settings import read_size
from clew.base.typed_json import Bounds, read_as
from clew.base.urls import UrlPath, as_path, local_path
from clew.storage.place import Entry, Place, Range
from clew.storage.places import open_place
from clew.storage.reading import read_bounded, read_json
from clew.storage.writing import lock_file, replace_file, written_name

SCHEMES = ("s3:", "gs:", "az:")
LIMITS = "cache.json"

Copy = TypeVar("Copy", bound="UrlCopy")


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG)
_VERSIONS = ".versions.json"
# In a folder that the user names, everything is in one folder of our own, which bears a mark.
_OWN_FOLDER = "clew-stores"
_MARK = "CACHEDIR.TAG"
_MARK_TEXT = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"  # of https://bford.info/cachedir
    b"# clew keeps what it downloads here, and deletes what it used least recently.\n"
)
# What caches of earlier versions contain, which have no mark.
_UNMARKED = {*SCHEMES, ".lock", LIMITS}
_MAX_FILE_BYTES = 1 << 30
_DEFAULT_BYTES = 64 * 10**9
_SHARE_OF_DISK = 0.5
_MAX_LIMITS_BYTES = 10_000
_is_forked = False
_THREADS = 16


class UrlCopy(PosixPath):
    """A path like any other, `ROOT/s3:/bucket/prefix`. In messages, `f"{path}"` is the URL."""

    def __format__(self, spec: str) -> str:
        return format(self.url, spec)

    @property
    def url(self) -> str:
        at = self._scheme_at()
        return f"{self.parts[at]}//{'/'.join(self.parts[at + 1 :])}"

    @property
    def base(self) -> Path:
        """The folder on this machine in which all copies lie."""
        return Path(*self.parts[: self._scheme_at()])

    def _scheme_at(self) -> int:
        """From the end: a cache may lie in a folder with such a name."""
        found = [at for at, part in enumerate(self.parts) if part in SCHEMES]
        return found[-1]


class MirrorFolder(UrlCopy):
    """A folder in the cache, whose shards come from the URL when they are opened."""

    @property
    def cache_dir(self) -> Path:
        return self.base

    @property
    def place(self) -> Place:
        return open_reading(self.url)


def copy_of(url: str, root: Path, kind: type[Copy]) -> Copy:
    """Where the folder at a URL lies on this machine."""
    scheme, _, rest = url.partition("//")
    names = rest.split("/")
    if any(name in ("", ".", "..", *SCHEMES) for name in names):
        raise InputError(f'"{url}" has a part that no folder can be called: use another prefix.')
    return kind(root, scheme, *names)


def open_folder(
    where: str | os.PathLike[str],
    *,
    cache_dir: str | Path | None = None,
    cache_size: str | int | None = None,
) -> Path:
    """The folder of a store, or of stores, at a path or URL, as a path on this machine.

    Args:
        where: A path, or a URL that starts with s3://, gs://, az:// or file://.
        cache_dir: Folder for what is downloaded, in a folder "clew-stores" in it. [default: the
            user's cache folder]
        cache_size: The most that this folder may take, such as "50GB", for all processes that
            share it. [default: what was set last, or 64 GB, at most half of the free space]

    Raises:
        InputError: It is no such URL, or the cache cannot be used, or contains other things.
        StoreError: The server does not answer, or refuses.
    """
    given = as_path(where)
    if not isinstance(given, UrlPath):
        return given
    root = _own_folder(cache_dir)
    with writing_to(root):
        _claim(root)
        if cache_size is not None:
            set_limit(root, read_size("cache_size", cache_size))
        folder = copy_of(str(given), root, MirrorFolder)
        _refresh(folder, folder.place)
    return folder


def _own_folder(cache_dir: str | Path | None) -> Path:
    if cache_dir is None:
        return Path(platformdirs.user_cache_dir("clew"), "stores")
    given = local_path(cache_dir).absolute()
    return given if given.name == _OWN_FOLDER else given / _OWN_FOLDER


def _claim(root: Path) -> None:
    """Makes the folder, or makes sure that it is a cache. Raises InputError if it is not."""
    root.mkdir(parents=True, exist_ok=True)
    found = {*os.listdir(root)}
    others = {written_name(name) for name in found} - _UNMARKED - {_MARK}
    is_marked = _MARK in found and _is_own_mark(root / _MARK)
    if not is_marked and (others or _MARK in found):
        raise InputError(
            f'"{root}" contains "{min(others or {_MARK})}", which clew did not put there: give '
            "another folder.",
            setting="cache_dir",
            value=str(root.parent),
        )
    if _MARK not in found or os.lstat(root / _MARK).st_size == 0:
        replace_file(root / _MARK, _MARK_TEXT)


def _is_own_mark(path: Path) -> bool:
    """An empty one is left by a process that was killed."""
    try:
        return _MARK_TEXT.startswith(read_bounded(path, len(_MARK_TEXT)))
    except (OSError, ValueError):
        return False


def _refresh(folder: MirrorFolder, place: Place) -> None:
    """Copies the small files that are new or changed, also of the stores in the folder, and removes
    those that are gone."""
    for name in place.folders():
        if not name.startswith("."):
            _refresh_files(folder / name, place.child(name))
    _refresh_files(folder, place)


def _refresh_files(folder: Path, place: Place) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(folder / ".versions.lock"):
        before, now = _read_versions(folder), {}
        for name, entry in place.entries().items():
            if not _is_small(name):
                continue
            is_here = before.get(name) == entry.version and (folder / name).exists()
            now[name] = entry.version if is_here else _copy(folder, place, name)
        for name in before.keys() - now.keys():
            (folder / name).unlink(missing_ok=True)
        if now != before:
            replace_file(folder / _VERSIONS, json.dumps(now).encode())


def _is_small(name: str) -> bool:
    return not name.startswith((".", "batch_")) and os.path.basename(name) == name


def _copy(folder: Path, place: Place, name: str) -> str:
    """The version of the file that is here now."""
    try:
        content = place.read(name, _MAX_FILE_BYTES)
    except FileNotFoundError:
        raise StoreError(f"{name} in {place.url} was deleted a moment ago: try again.") from None
    except ValueError as error:
        raise StoreError(f"{name} in {place.url} cannot be copied: {error}.") from None
    replace_file(folder / name, content.data)
    return content.version


def _read_versions(folder: Path) -> dict[str, str]:
    try:
        versions = read_as(dict[str, str], read_json(folder / _VERSIONS))
    except (OSError, ValueError):
        return {}
    return {name: version for name, version in versions.items() if _is_small(name)}


@contextmanager
def writing_to(cache_dir: Path) -> Iterator[None]:
    """Turns what the operating system says about the cache into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(
                f'the disk that holds the cache "{cache_dir}" is full: free some space, or give a '
                "`cache_dir` on another disk or a smaller `cache_size`."
            ) from None
        if error.errno in _REFUSED:
            raise InputError(
                f"the cache cannot be written ({error.strerror}): give another folder.",
                setting="cache_dir",
                value=str(cache_dir),
            ) from None
        raise


class _Limits(TypedDict):
    max_bytes: Annotated[int, Bounds(least=1, most=1 << 60)]


def set_limit(cache_dir: Path, max_bytes: int) -> None:
    replace_file(cache_dir / LIMITS, json.dumps(_Limits(max_bytes=max_bytes)).encode())


def read_limit(cache_dir: Path) -> int:
    """The limit in bytes; without one, 64 GB, but at most half of the free space."""
    try:
        raw = read_json(cache_dir / LIMITS, max_bytes=_MAX_LIMITS_BYTES)
        limits: _Limits = read_as(_Limits, raw)
        return limits["max_bytes"]
    except (OSError, ValueError):
        free = shutil.disk_usage(cache_dir).free
        return min(_DEFAULT_BYTES, int(_SHARE_OF_DISK * free))


def _forget() -> None:
    """What was opened before the fork cannot be used after it."""
    global _is_forked  # noqa: PLW0603 - the state of this process
    # Without obstore nothing was opened.
    _is_forked = _is_forked or "obstore" in sys.modules
    open_reading.cache_clear()
    _helper.cache_clear()


@cache
def open_reading(url: str) -> Place:
    """The place at a URL, for reading, opened once per process."""
    return HelpedPlace(url) if _is_forked else open_place(url)  # type: ignore[return-value]


class HelpedPlace:
    """The part of a `Place` that reads, done by another process."""

    def __init__(self, url: str) -> None:
        self.url = url

    def child(self, name: str) -> "HelpedPlace":
        return HelpedPlace(f"{self.url}/{name}")

    def folders(self) -> list[str]:
        return self._call("folders")

    def entries(self) -> dict[str, Entry]:
        return self._call("entries")

    def read(self, name: str, max_bytes: int) -> Any:
        return self._call("read", name, max_bytes)

    def read_ranges(self, name: str, ranges: Sequence[Range]) -> list[memoryview]:
        return [memoryview(piece) for piece in self._call("read_ranges", name, ranges)]

    def _call(self, method: str, *arguments: Any) -> Any:
        return _helper().call(self.url, method, *arguments)


class _Helper:
    """The other process, which answers any number of calls at the same time. It ends with this
    one."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            number = theirs.fileno()
            self._process = start_function(serve, number, pass_fds=[number])
            self._pipe: Connection = Connection(os.dup(ours.fileno()))
        self._numbers, self._lock = count(), threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        threading.Thread(target=self._receive, daemon=True).start()

    def call(self, *request: Any) -> Any:
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
            self._pipe.send((number, *request))
        return future.result()

    def _receive(self) -> None:
        while True:
            try:
                number, answer = self._pipe.recv()
            except (EOFError, OSError):
                break
            future = self._waiting.pop(number)
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        while self._waiting:
            _, future = self._waiting.popitem()
            future.set_exception(OSError("the process that reads from URLs has ended"))


@cache
def _helper() -> _Helper:
    return _Helper()


os.register_at_fork(after_in_child=_forget)


def serve(descriptor: int) -> None:
    """What the other process does: answers the calls that come through this socket."""
    pipe, lock = Connection(descriptor), threading.Lock()

    def answer(number: int, url: str, method: str, *arguments: Any) -> None:
        try:
            found = getattr(open_reading(url), method)(*arguments)
            found = [bytes(one) for one in found] if method == "read_ranges" else found
        except (ClewError, OSError, EOFError, ValueError) as error:  # raised where it was asked
            found = error
        with lock:
            pipe.send((number, found))

    with ThreadPoolExecutor(_THREADS) as threads:
        while True:
            try:
                request = pipe.recv()
            except EOFError:
                return
            threads.submit(answer, *request)
