"""Names that a user types: lists of them, and what a misspelled one probably means."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def split_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """ "a, B" as ("a", "b"): names in lower case; dashes may stand for underscores."""
    parts = given.split(",") if isinstance(given, str) else given
    names = (part.strip().lower().replace("-", "_") for part in parts)
    return tuple(name for name in names if name)


def find_close(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` probably means, regardless of case; None if none is close."""
    by_plain = {one.casefold(): one for one in known}
    close = get_close_matches(name.casefold(), by_plain, n=1, cutoff=0.75)
    return by_plain[close[0]] if close else None


def suggest(name: str, known: Iterable[str]) -> str:
    """' (did you mean "linear_probe"?)', or "" if no known name is close."""
    close = find_close(name, known)
    return f' (did you mean "{close}"?)' if close else ""
