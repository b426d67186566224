"""Figures of a report: read from results.json, where any may be missing, and as a person reads
them, a missing one as a dash."""

import json
import math
from pathlib import Path
from typing import Any

from clew.errors import StoreError
from clew.wording import bytes_text, three_digits
from clew.wording import counted as counted  # reports have all their words from here

History = list[dict[str, float | None]]
DASH = "\N{EN DASH}"


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


def decimals(value: float | None, places: int = 3) -> str:
    return DASH if value is None else f"{value:.{places}f}"


def signed(value: float | None) -> str:
    """With a real minus, as wide as the plus."""
    return DASH if value is None else f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


def interval_text(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"[{interval[0]:.3f},\N{NO-BREAK SPACE}{interval[1]:.3f}]"


def whole(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    return DASH if value is None else three_digits(value)


def size(value: float | None) -> str:
    return DASH if value is None else bytes_text(value)


def p_text(value: float | None) -> str:
    if value is None:
        return ""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def percent(value: float) -> str:
    return f"{100 * value:.0f}%"
