"""Arguments of the steps as the library takes them."""

from pathlib import Path


def as_path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)
