"""A method that breaks in the middle is named as left out, and the rest goes on; what is not the
method's own trouble ends the comparison."""

import logging
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clew.errors import (
    ClewError,
    DiskFullError,
    SettingsMismatchError,
    StoreLockedError,
    TrainingStoppedError,
)

logger = logging.getLogger(__name__)

# They hold for all methods alike.
_END_THE_RUN = (
    *(TrainingStoppedError, SettingsMismatchError, StoreLockedError, DiskFullError),
    OSError,
)
_NUMERICAL = (np.linalg.LinAlgError, FloatingPointError, ZeroDivisionError, OverflowError)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A method without a row. `is_fault` when nobody foresaw it: a fault of clew."""

    method: str
    title: str
    reason: str
    is_fault: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {"method": self.method, "title": self.title, "reason": self.reason}


def explain_failure(method: str, title: str, error: Exception, *, folder: Path) -> LeftOut:
    """Why the method is left out; raises the error again when it ends the whole run. Where a
    fault came up is written into `folder`."""
    if isinstance(error, _END_THE_RUN):
        raise error
    if isinstance(error, ClewError):
        return LeftOut(method=method, title=title, reason=str(error))
    if isinstance(error, MemoryError):
        reason = f"it does not fit in memory ({error}): use fewer answers or a larger machine"
        return LeftOut(method=method, title=title, reason=reason)
    if isinstance(error, _NUMERICAL):
        return LeftOut(method=method, title=title, reason=f"its numbers broke down ({error})")
    path = folder / f"{method}.fault.txt"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    logger.error("%s broke: %s", title, path)
    reason = f'it broke by a fault of clew ({type(error).__name__}: {error}), told in "{path}"'
    return LeftOut(method=method, title=title, reason=reason, is_fault=True)
