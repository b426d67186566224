"""Which files and folders in a folder of results are clew's own: only those are ever replaced or
removed. A hidden list of their names lies beside them."""

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from clew.base.errors import InputError
from clew.base.typed_json import read_as
from clew.storage.places import open_place
from clew.storage.reading import open_regular, read_json
from clew.storage.run_file import is_run_file
from clew.storage.working_copy import WorkingCopy
from clew.storage.writing import replace_json, written_name

OWN_FILE = ".clew.json"
# Files of earlier versions, which kept no list, that say what wrote them: within how many bytes.
_SIGNED = {
    "results.json": 1 << 24,
    "last.safetensors": 1 << 16,
    "best.safetensors": 1 << 16,
    "detector.json": 1 << 16,
    "findings.json": 1000,
    "index.html": 1000,
}
_SIGNATURES = (b'"clew ', b'"clew"', b'"clew-', b"<title>clew</title>")


def claim(folder: Path, names: Iterable[str], *, command: str = "") -> None:
    """Note that clew writes files or folders of these names into a folder. Raises InputError if
    somebody else's has one of the names. Those that an earlier version wrote are known by one of
    them that says so, or by the run.toml of the same `command`."""
    wanted, own, there = {*names}, _read_own(folder), _list_entries(folder)
    if wanted <= own:
        return
    taken = sorted((wanted - own) & there)
    if taken and not _is_of_earlier_version(folder, taken, command):
        raise InputError(
            f'"{folder / taken[0]}" was not written by clew, so it is not replaced: choose '
            "another output folder, or move it."
        )
    replace_json(folder / OWN_FILE, {"files": sorted(own | wanted)})


def is_interrupted(folder: Path) -> bool:
    """Whether a folder holds nothing but what clew has claimed there, or was writing when it was
    killed."""
    own = _read_own(folder) | {OWN_FILE}
    return all(written_name(name) in own for name in os.listdir(folder))


def _read_own(folder: Path) -> set[str]:
    try:
        return {*read_as(list[str], read_json(folder / OWN_FILE)["files"])}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _list_entries(folder: Path) -> set[str]:
    found = {*os.listdir(folder)}
    if isinstance(folder, WorkingCopy):
        place = open_place(folder.url)
        found |= {*place.names(), *place.folders()}
    return found


def _is_of_earlier_version(folder: Path, taken: Collection[str], command: str) -> bool:
    if command and is_run_file(folder, command):
        return True
    return any(_is_signed(folder / name, _SIGNED[name]) for name in {*taken} & _SIGNED.keys())


def _is_signed(path: Path, size: int) -> bool:
    try:
        with open_regular(path) as file:
            content = file.read(size)
    except OSError:
        return False
    return any(signature in content for signature in _SIGNATURES)
