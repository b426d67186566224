"""Counts, sizes and shares as people read them, in reports and at the terminal."""

import math
from collections.abc import Sequence

_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def list_some(names: Sequence[str], most: int = 8) -> str:
    """ "a, b, c and 1,204 more": names the first `most`."""
    shown, more = ", ".join(names[:most]), len(names) - most
    return f"{shown} and {more:,} more" if more > 0 else shown


def bytes_text(count: float) -> str:
    """Three significant digits: "512 bytes", "1.31 kB", "812 MB", "24.5 GB"."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{three_digits(count / size)} {unit}"
    return counted(round(count), "byte")


def duration_text(seconds: float) -> str:
    seconds = max(0, round(seconds))
    if seconds < 90:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"


def step_text(seconds: float) -> str:
    """A duration that may be tiny, no more exact than it was measured: "8.3 µs", "2.1 ms", "1.4 s",
    then as `duration_text`."""
    if seconds >= 10:
        return duration_text(seconds)
    if seconds <= 0:
        return "0 s"
    unit, size = next((pair for pair in _UNITS if seconds >= pair[1]), _UNITS[-1])
    value = seconds / size
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def rate_text(per_second: float, noun: str = "samples") -> str:
    """A rate in three significant digits, no more precise than it was measured: "12.3 samples/s",
    "12,300 samples/s"."""
    if per_second < 100:
        return f"{three_digits(per_second)} {noun}/s"
    digits = len(str(int(per_second))) - 3
    return f"{round(per_second, -digits):,.0f} {noun}/s"


def three_digits(value: float) -> str:
    """0.0021, 1.31, 61.2, 2,410."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def whole_percent(share: float) -> str:
    """Truncated, not rounded: what does not reach 60% is not shown as 60%. With one decimal near
    the top, and 100% only if exact."""
    if 0 < share < 0.01:
        return "<1%"
    return f"{_cut(share, 1 if 0.99 < share < 1 else 0):g}%"


def tenth_percent(share: float) -> str:
    """Rounded, but truncated near the top: 99.96% is not 100%."""
    return f"{_cut(share, 1) if 0.999 <= share < 1 else 100 * share:.1f}%"


def _cut(share: float, places: int) -> float:
    """A fraction as percent, cut to `places` decimals; 0.29 * 100, which is slightly below 29,
    counts as 29."""
    parts = math.floor(round(100 * share * 10**places, 6))
    most = 100 * 10**places - (share < 1)
    return min(parts, most) / 10**places
