"""results.json of a training or an evaluation, read back: any entry may be missing, but one that is
there has its type. Imports nothing heavy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

from clew.base.errors import StoreError
from clew.base.texts import for_shell
from clew.base.typed_json import Bounds, Count, Seconds, read_as, without_nan
from clew.storage.reading import read_json

RESULTS = "results.json"
# Of the photos of known classes, the share that is marked as unknown.
USUAL_UNKNOWN = 0.05
# Labels that look wrong are mentioned from this many on.
_FEWEST_SUSPECTS, _SUSPECT_SHARE = 3, 0.02
_Share = Annotated[float, Bounds(least=0, most=1)]
# What the summary of a finished training shows.
SHOWN = (
    *("test_accuracy", "test_accuracy_ci", "test_photos", "classes", "per_class", "confusion"),
    *("best_epoch", "epochs_run", "seconds", "images_per_second"),
)


class _Class(TypedDict, total=False):
    """A row of `per_class`: what is shown of it."""

    recall: _Share | None
    test: Count


class _Data(TypedDict, total=False):
    folder: str | None
    photos: Count | None


class _Results(TypedDict, total=False):
    """The entries that clew reads again."""

    test_accuracy: _Share | None
    test_accuracy_ci: tuple[_Share, _Share] | None
    test_photos: Count | None
    classes: list[str] | None
    per_class: list[_Class] | None
    confusion: list[list[Count]] | None
    best_epoch: Count | None
    epochs_run: Count | None
    seconds: Seconds | None
    images_per_second: Seconds | None
    network: str | None
    data: _Data | None


def read_results_file(path: Path, *, complete: bool = False) -> dict[str, Any]:
    """What the file holds, all of it if `complete`. Raises OSError, and ValueError, which names
    what is wrong, if it is damaged."""
    content = read_as(dict[str, Any], without_nan(read_json(path, finite=False, encodable=False)))
    read_as(_Results, content)
    classes, confusion = content.get("classes") or [], content.get("confusion")
    size = len(classes)
    if confusion is not None and [len(row) for row in confusion] != [size] * size:
        raise ValueError(f"confusion does not have {size} x {size} counts")
    if any(row.get("class") not in classes for row in content.get("per_class") or ()):
        raise ValueError("per_class has a row of another class")
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


def describe_suspects(results: Mapping[str, Any]) -> str:
    """A sentence about labels that look wrong; "" if hardly any do, and for results of earlier
    versions and of evaluations."""
    found, data = results.get("suspect_labels"), results.get("data")
    if not isinstance(found, int) or not isinstance(data, dict):
        return ""
    splits = data.get("splits") or {}
    photos = sum(splits.get(split) or 0 for split in ("validation", "test"))
    if found < max(_FEWEST_SUSPECTS, _SUSPECT_SHARE * photos):
        return ""
    return (
        f"{found:,} of {photos:,} validation and test photos are predicted as another class with "
        "confidence: their labels may be wrong. Check the labels of all photos with "
        f'"clew patterns clean {for_shell([data.get("folder") or "FOLDER"])}".'
    )
