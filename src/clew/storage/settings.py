"""A store is continued only with the settings it was started with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew.errors import SettingsMismatchError
from clew.settings import find_differences


def refuse_other_settings(
    store: Path, before: Mapping[str, Any], now: Mapping[str, Any], may_differ: tuple[str, ...]
) -> None:
    """Raises SettingsMismatchError with both values of all that differ. Names that begin with one
    of `may_differ` do not count."""
    different = find_differences(before, now, may_differ)
    if different:
        raise SettingsMismatchError(
            f'the store "{store}" was started with other settings:\n  '
            + "\n  ".join(map(str, different))
            + "\nUse the same settings to continue it, or another `out` to start a new one."
        )
