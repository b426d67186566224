"""results.json of a training or an evaluation, read back: any entry may be missing, but one that is
there has its type. Imports nothing heavy."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from clew.base.errors import StoreError
from clew.base.typed_json import Bounds, Count, Seconds, read_as, without_nan
from clew.storage.reading import read_json

RESULTS = "results.json"
# Of the photos of known classes, the share that is marked as unknown.
USUAL_UNKNOWN = 0.05
_Share = Annotated[float, Bounds(least=0, most=1)]
# What the summary of a finished training shows.
SHOWN = (
    *("test_accuracy", "test_accuracy_ci", "test_photos", "classes", "per_class", "confusion"),
    *("best_epoch", "epochs_run", "seconds", "images_per_second"),
)


@dataclass(frozen=True, kw_only=True)
class _Results:
    """The entries that clew reads again."""

    test_accuracy: _Share | None = None
    test_accuracy_ci: tuple[_Share, _Share] | None = None
    test_photos: Count | None = None
    classes: list[str] | None = None
    per_class: list[dict[str, str | int | float | None]] | None = None
    confusion: list[list[Count]] | None = None
    best_epoch: Count | None = None
    epochs_run: Count | None = None
    seconds: Seconds | None = None
    images_per_second: Seconds | None = None
    network: str | None = None
    data: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class _Class:
    """A row of `per_class`: what is shown of it."""

    recall: _Share | None = None
    test: Count = 0


@dataclass(frozen=True, kw_only=True)
class _Data:
    folder: str | None = None
    photos: Count | None = None


def read_results_file(path: Path, *, complete: bool = False) -> dict[str, Any]:
    """What the file holds, all of it if `complete`. Raises OSError, and ValueError, which names
    what is wrong, if it is damaged."""
    content = read_as(dict[str, Any], without_nan(read_json(path, finite=False, encodable=False)))
    results = read_as(_Results, _part(content, _Results))
    read_as(_Data, _part(results.data or {}, _Data), "data")
    for row in results.per_class or ():
        read_as(_Class, _part(row, _Class), "per_class")
    _check_classes(results)
    missing = [name for name in SHOWN if content.get(name) is None]
    if complete and missing:
        raise ValueError(f"{missing[0]} is missing")
    return content


def refuse_other_results(folder: Path, *wanted: str) -> None:
    """Raise StoreError if the folder has a results.json without the `wanted` keys: something else
    wrote it."""
    path = folder / RESULTS
    if not path.exists():
        return
    try:
        there = read_results_file(path)
    except (OSError, ValueError) as error:
        raise StoreError(
            f'"{path}" cannot be read ({error}): delete it and run the same command again to '
            "re-create it (the model beside it is kept), or choose another `out`."
        ) from None
    if not set(wanted) <= there.keys():
        raise StoreError(f'"{path}" was not written by this command: choose another `out`.')


def _part(content: dict[str, Any], kind: Any) -> dict[str, Any]:
    return {field.name: content[field.name] for field in fields(kind) if field.name in content}


def _check_classes(results: _Results) -> None:
    classes, confusion = results.classes or [], results.confusion
    size = len(classes)
    if confusion is not None and [len(row) for row in confusion] != [size] * size:
        raise ValueError(f"confusion does not have {size} x {size} counts")
    if any(row.get("class") not in classes for row in results.per_class or ()):
        raise ValueError("per_class has a row of another class")
