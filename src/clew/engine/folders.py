"""The output folder of a run: made at its beginning, emptied when it is to start afresh."""

import shutil
from pathlib import Path

from clew.engine.checkpoint import BEST, LAST, NEXT_BEST
from clew.engine.result import RESULT
from clew.errors import InputError
from clew.storage.writing import remove_temporaries

CURVES = "curves.png"
# What a network's training leaves; anything else in its folder is somebody else's.
_LEFT_BEHIND = (LAST, BEST, NEXT_BEST, "log.csv", "plan.json", RESULT, CURVES)


def make_folder(folder: Path) -> None:
    """Raises InputError when it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f'the folder "{folder}" cannot be made ({error.strerror}): choose another `output_dir`.'
        ) from None


def clear_run(folder: Path, *more: str) -> None:
    """Take away what an earlier run wrote into a network's folder, and `more` files of its own."""
    for name in (*_LEFT_BEHIND, *more):
        (folder / name).unlink(missing_ok=True)
    remove_temporaries(folder)
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)
