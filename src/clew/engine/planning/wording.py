"""Figures as the plan's sentences give them."""

_MINUTE, _HOUR = 60, 3600


def step_text(seconds: float) -> str:
    """The time of a step: "2.1 ms", "1.4 s"."""
    return f"{_three_digits(seconds)} s" if seconds >= 1 else f"{_three_digits(seconds * 1e3)} ms"


def duration_text(seconds: float) -> str:
    if seconds < 1.5 * _MINUTE:
        return f"{max(1, round(seconds))} s"
    if seconds < 1.5 * _HOUR:
        return f"{round(seconds / _MINUTE)} min"
    return f"{_three_digits(seconds / _HOUR)} h"


def bytes_text(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:.0f} bytes"


def rate_text(per_second: float) -> str:
    """Samples a second, no more exact than it was measured."""
    if per_second < 100:
        return f"{_three_digits(per_second)} samples/s"
    digits = len(str(int(per_second))) - 3
    return f"{round(per_second, -digits):,.0f} samples/s"


def percent_text(share: float) -> str:
    return f"{abs(share):.0%}"


def count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
