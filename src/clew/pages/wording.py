"""Numbers and texts as a person reads them; a missing one is a dash."""

from clew.wording import bytes_text, three_digits
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
    return DASH if value is None else three_digits(value)


def size(value: float | None) -> str:
    return DASH if value is None else bytes_text(value)


def p_text(value: float | None) -> str:
    if value is None:
        return ""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def percent(value: float) -> str:
    return f"{100 * value:.0f}%"
