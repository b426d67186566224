"""Numbers and texts as a person reads them; a missing one is a dash."""

from typing import Any

from clew.wording import counted as counted  # reports have all their words from here

DASH = "\N{EN DASH}"


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
    """Three digits that matter: 0.0021, 1.31, 61.2, 2,410."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def bytes_text(value: float | None) -> str:
    if value is None:
        return DASH
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} GB"


def p_text(value: float | None) -> str:
    if value is None:
        return ""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def chosen_text(chosen: dict[str, Any]) -> str:
    """`{"layer": 18, "C": 0.01}` as "layer 18, C 0.01"."""
    return ", ".join(f"{name} {_value(value)}" for name, value in chosen.items())


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
