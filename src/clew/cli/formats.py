"""Texts from files as a terminal may show them."""

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def plain_text(text: object, *, lines: bool = False) -> str:
    """Text from files, safe for a terminal: control characters as JSON spells them.

    `lines` leaves newlines as they are.
    """
    plain = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", str(text))
    return plain if lines else plain.replace("\n", "\\n")
