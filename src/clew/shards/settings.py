"""A store is gone on with only under the settings it was begun with."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clew.errors import SettingsMismatchError


def refuse_other_settings(
    store: Path, before: Mapping[str, Any], now: Mapping[str, Any], may_differ: tuple[str, ...]
) -> None:
    """Raises SettingsMismatchError with both values of all that differ.

    Nested settings are named as "model.layers"; names that begin with one of `may_differ` do not
    count.
    """
    old, new = dict(_flatten(before)), dict(_flatten(now))
    different = [
        f"{key}: {old.get(key)!r} in the store, {new.get(key)!r} now"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not key.startswith(may_differ)
    ]
    if different:
        raise SettingsMismatchError(
            f'the store "{store}" was begun with other settings:\n  '
            + "\n  ".join(different)
            + "\nUse the same settings to go on with it, or another --out to begin a new one."
        )


def _flatten(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
