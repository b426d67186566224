"""Reads results.json of whatever a report is made from; any figure in it may be missing."""

import json
import math
from pathlib import Path
from typing import Any

from clew.errors import StoreError

History = list[dict[str, float | None]]


def read_results(path: Path, *, made_from: str, again: str) -> Any:
    """What it holds. Raises StoreError, in which `made_from` says what writes such a file, and
    `again` how to have it written."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(
            f'There is no "{path.name}" in "{path.parent}": a report is made from a finished '
            f"{made_from}. {again}, or name the folder that it wrote."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f'"{path}" cannot be read ({error}). {again}.') from None


def as_number(value: Any) -> float | None:
    """The number, or None for what is none: missing, not finite, or not a number at all."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def as_interval(value: Any) -> tuple[float, float] | None:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    low, high = map(as_number, value)
    return None if low is None or high is None else (low, high)


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
