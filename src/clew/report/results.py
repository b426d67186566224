"""Reads results.json of whatever a report is made from."""

import json
from pathlib import Path
from typing import Any

from clew.errors import StoreError


def read_results(path: Path, *, made_from: str, again: str) -> Any:
    """What it holds. Raises StoreError, in which `made_from` says what writes such a file, and
    `again` how to have it written."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(
            f'There is no "{path.name}" in "{path.parent}": a report is made from a finished '
            f"{made_from}. {again}, or name the folder that it wrote."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f'"{path}" cannot be read ({error}). {again}.') from None
