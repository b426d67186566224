"""Numbers and texts as people read them."""

import re

from clew.wording import bytes_text
from clew.wording import counted as count_text

__all__ = ["bytes_text", "count_text", "duration_text", "plain_text"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def plain_text(text: object, *, lines: bool = False) -> str:
    """Text from files, safe for a terminal: control characters as JSON spells them.

    `lines` leaves newlines as they are.
    """
    plain = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", str(text))
    return plain if lines else plain.replace("\n", "\\n")


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
