"""Texts and numbers as people read them, at the terminal and on the page."""

import re
from collections.abc import Mapping

from clew.patterns.library.summary import MIN_PHOTOS

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def safe_text(text: str) -> str:
    """Names of files may hold anything; a terminal must not obey it."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def tell_new_classes(classes: Mapping[str, int]) -> str:
    """Which there are, and whether they can be trained on; "" where there is none."""
    if not classes:
        return ""
    told = ", ".join(f"{safe_text(label)} ({count:,})" for label, count in classes.items())
    few = min(classes.values()) < MIN_PHOTOS
    need = f" Each needs at least {MIN_PHOTOS} photos before you train." if few else ""
    return f"New classes, with their photos: {told}.{need}"


def name_some(names: tuple[str, ...], *, most: int = 5) -> str:
    """The first few by name, the others by number."""
    told = ", ".join(f'"{safe_text(name)}"' for name in names[:most])
    return f"{told} and {len(names) - most:,} more" if len(names) > most else told
