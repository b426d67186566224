"""Finds sets and their training runs on disk: which run is a set's model, which one is resumed, and
which photos are new since. Imports nothing heavy: the command line takes its default from here."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.base.errors import StoreError
from clew.patterns.results_file import RESULTS, read_results_file

LIBRARY = Path("patterns")  # the default folder for sets
SET_FILE = "set.json"
_RUN = re.compile(r"\d{3,}")
_EXCLUDED = ("excluded.csv", "left_out.csv")  # the second in runs of earlier versions


@dataclass(frozen=True, kw_only=True)
class Change:
    """Photos that a run did not see, and those it saw that no longer exist."""

    new: int
    gone: int

    def __bool__(self) -> bool:
        return self.new + self.gone > 0


def library_settings(library: Path) -> dict[str, object]:
    """For a `Call`: the library is named if it is not the default."""
    return {} if library == LIBRARY else {"library": str(library)}


def find_runs(folder: Path) -> list[Path]:
    """The training runs in a folder, oldest first, finished or not."""
    if not folder.is_dir():
        return []
    found = [run for run in folder.iterdir() if _RUN.fullmatch(run.name) and run.is_dir()]
    return sorted(found, key=lambda run: int(run.name))


def next_run(folder: Path) -> Path:
    runs = find_runs(folder)
    return folder / f"{int(runs[-1].name) + 1 if runs else 1:03d}"


def is_finished(run: Path) -> bool:
    """Whether a training run finished in this folder: then it is a model."""
    return (run / RESULTS).is_file() and (run / "best.safetensors").is_file()


def is_started(run: Path) -> bool:
    """Whether a training run has written weights."""
    return any((run / name).is_file() for name in ("best.safetensors", "last.safetensors"))


def read_results(run: Path) -> dict[str, Any]:
    """What results.json holds, of a folder or at a URL; empty if it is missing or damaged."""
    from clew.storage.working_copy import fetched

    try:
        with fetched(run, RESULTS) as path:
            return read_results_file(path)
    except (OSError, ValueError):
        return {}


def compare_photos(run: Path, names: set[str]) -> Change | None:
    """What changed in a set since a run looked at it; None if the run did not get that far.

    `names` are the current photos, by their path in the folder of photos.
    """
    if not (run / "splits.csv").is_file():
        return None
    used = _read_names(run / "splits.csv")
    excluded = {name for file in _EXCLUDED for name in _read_names(run / file)}
    return Change(new=len(names - used - excluded), gone=len(used - names))


def _read_names(path: Path) -> set[str]:
    from clew.storage.text_files import read_csv

    try:
        return {row["name"] for row in read_csv(path) if row.get("name")}
    except FileNotFoundError:
        return set()
    except ValueError as error:
        raise StoreError(
            f'"{path}" cannot be read ({error}): delete its folder and train again.'
        ) from None
