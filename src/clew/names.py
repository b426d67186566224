"""Names that a user types: lists of them, and what a misspelled one probably means."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

_EXTENSION = re.compile(r"\.[A-Za-z]{2,7}")


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


def looks_like_path(name: str) -> bool:
    """Whether a name that does not exist is a mistyped path rather than an id on the Hub, which has
    at most one slash and rarely an extension."""
    if name.startswith(("/", "./", "../", "~")) or name.count("/") > 1:
        return True
    path = Path(name)
    return bool(_EXTENSION.fullmatch(path.suffix)) and ("/" not in name or path.parent.is_dir())


def suggest_path(name: str) -> str:
    """As `suggest`, for a path that does not exist: the closest name in the same folder."""
    path = Path(name).expanduser()
    if not path.parent.is_dir():
        return ""
    close = find_close(path.name, sorted(one.name for one in path.parent.iterdir()))
    return f' (did you mean "{path.with_name(close)}"?)' if close else ""
