"""Open a store at a path or a URL. Of a store at a URL, the small files (manifest, splits, basis)
are copied into the cache, where its shards will follow."""

import json
import os
from pathlib import Path

import platformdirs

from clew.base.errors import InputError, StoreError
from clew.base.settings import read_size
from clew.base.typed_json import read_as
from clew.base.urls import UrlPath, as_path, local_path
from clew.storage.mirror.cache import writing_to
from clew.storage.mirror.limits import LIMITS, set_limit
from clew.storage.mirror.path import SCHEMES, MirrorFolder, copy_of
from clew.storage.places import Place
from clew.storage.reading import read_bounded, read_json
from clew.storage.writing import lock_file, replace_file, written_name

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
