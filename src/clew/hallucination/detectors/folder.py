"""Where a detector is: a folder with these files. Importing this loads nothing heavy."""

from pathlib import Path

from clew.base.errors import InputError, StoreError
from clew.base.texts import suggest_path
from clew.base.urls import is_url
from clew.engine.config import BEST

DETECTOR_JSON, WEIGHTS = "detector.json", "detector.safetensors"
# The folder of the detector that a comparison or a training keeps.
KEPT = "detector"


def find_folder(path: Path) -> Path | None:
    """The folder of the kept detector that `path` means; None if it means a network alone."""
    if path.name == DETECTOR_JSON:
        path = path.parent
    if (path / BEST).exists():
        return None
    folders = (path, path / KEPT)
    return next((folder for folder in folders if (folder / DETECTOR_JSON).exists()), None)


def check_detector(given: object) -> None:
    """Check that there is a detector before PyTorch is imported; what is not a path, or is a URL,
    is fine. Raises InputError or StoreError."""
    if not isinstance(given, str | Path) or is_url(given):
        return
    path = Path(given)
    if not path.exists():
        raise InputError(
            f"there is no such file or folder{suggest_path(str(given))}.",
            setting="detector",
            value=given,
        )
    if find_folder(path) is None and path.is_dir() and not (path / BEST).exists():
        raise explain_missing(path)


def explain_missing(path: Path) -> StoreError:
    """For a folder that does not contain a network, but perhaps several folders of them."""
    found = [str(one.parent) for one in sorted(path.glob(f"*/{BEST}"))]
    if found:
        return StoreError(f'"{path}": give the folder of one network: {", ".join(found)}.')
    return StoreError(
        f'there is no detector in "{path}": give a folder with a {DETECTOR_JSON}, which "clew '
        f'compare" or "clew train" writes, or with the {BEST} of a network.'
    )
