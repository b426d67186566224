"""The numbers of a report: read from results.json, where any may be missing, and formatted for
readers; a missing one is shown as a dash."""

import math
from pathlib import Path
from typing import Any

from clew.base.errors import StoreError
from clew.base.texts import bytes_text, step_text, three_digits
from clew.base.texts import counted as counted  # reports import their wording from here
from clew.storage.reading import read_json

History = list[dict[str, float | None]]
DASH = "\N{EN DASH}"


def read_results(path: Path, *, made_from: str, again: str) -> Any:
    """Read a results.json. Raises a StoreError that says what writes such a file (`made_from`) and
    how to write it again (`again`)."""
    try:
        return read_json(path, finite=False, encodable=False)
    except FileNotFoundError:
        raise StoreError(
            f'There is no "{path.name}" in "{path.parent}": a report requires a finished '
            f"{made_from}. {again}, or pass the folder that it wrote."
        ) from None
    except (OSError, ValueError) as error:
        raise StoreError(f'"{path}" cannot be read ({error}). {again}.') from None


def as_number(value: Any) -> float | None:
    """The number, or None if the value is missing, non-finite or not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and value.bit_length() > 64:
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
    """A number with its sign; the minus sign is as wide as the plus."""
    return DASH if value is None else f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


def interval_text(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"[{interval[0]:.3f},\N{NO-BREAK SPACE}{interval[1]:.3f}]"


def whole(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def brief(value: float | None) -> str:
    """A count in three digits: 577, 17.3k, 10.8M."""
    if value is None:
        return DASH
    for unit, scale in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= max(scale, 1e4):
            return f"{three_digits(value / scale)}{unit}"
    return f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    return DASH if seconds is None else step_text(seconds)


def size(value: float | None) -> str:
    return DASH if value is None else bytes_text(value)


def p_text(value: float | None) -> str:
    if value is None:
        return ""
    text = "p < 0.001" if value < 0.001 else f"p = {value:.3f}"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def percent(value: float) -> str:
    return f"{100 * value:.0f}%"
