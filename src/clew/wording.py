"""Counts, sizes and shares as people read them, on pages and at the terminal."""

import math


def counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def bytes_text(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.1f} {unit}" if unit != "bytes" else counted(round(count), "byte")
        count /= 1000
    return f"{count:,.1f} TB"


def whole_percent(share: float) -> str:
    """Cut, not rounded: what does not reach 60% is not told as 60%. Near the top with a tenth, and
    100% only where it is certain."""
    if 0 < share < 0.01:
        return "<1%"
    return f"{_cut(share, 1 if 0.99 < share < 1 else 0):g}%"


def tenth_percent(share: float) -> str:
    """Rounded, but cut near the top: 99.96% are not all."""
    return f"{_cut(share, 1) if 0.999 <= share < 1 else 100 * share:.1f}%"


def _cut(share: float, places: int) -> float:
    """As percent; 0.29 * 100 is a trifle less than 29, and still 29."""
    parts = math.floor(round(100 * share * 10**places, 6))
    most = 100 * 10**places - (share < 1)
    return min(parts, most) / 10**places
