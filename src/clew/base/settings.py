"""Settings: checked when they are given, compared when earlier work is resumed."""

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from clew.base import urls
from clew.base.errors import InputError, SettingsMismatchError
from clew.base.texts import suggest_path

# The names of these settings in files of an earlier version of clew.
_OLD_NAMES = {"right": "correct", "made_up": "hallucinated"}
MAX_SIZE, MAX_LAYERS = 2**20, 256
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
START_OVER = "Use `overwrite=True` to start over in this folder."


def as_path(given: str | Path | None) -> Path | None:
    """Convert an optional path or URL to a Path; None stays None."""
    return None if given is None else urls.as_path(given)


def read_size(setting: str, value: int | str) -> int:
    """Bytes from a number or a text such as "500MB", "4 GB" or "1.5GiB". Raises InputError."""
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, str) else None
    if match is not None:
        number, unit, binary = match.groups()
        value = int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(
            'give a size such as "4GB" or "500MB", or a number of bytes.',
            setting=setting,
            value=value,
        )
    return value


def check_exists(setting: str, value: object) -> None:
    """Check a path before the work that needs it starts; what is not a path, or is a URL, is
    fine."""
    if isinstance(value, str | Path) and not urls.is_url(value) and not _is_there(value):
        raise InputError("there is no such file or folder.", setting=setting, value=value)


def _is_there(path: str | Path) -> bool:
    return Path(path).expanduser().exists()


def check_folders(*folders: object) -> None:
    """Check that folders to read from exist, before anything slow is imported; what is not a path,
    or is a URL, is fine."""
    for folder in folders:
        if isinstance(folder, str | Path) and not (urls.is_url(folder) or _is_there(folder)):
            meant = suggest_path(str(folder))
            raise InputError(f'there is no folder "{folder}"{meant}: check the path.')


def check_writable(setting: str, out: str | Path | None, *, is_file: bool = False) -> None:
    """Check that a folder, or a file, could be created there or written to; URLs are fine."""
    if out is None or urls.is_url(out):
        return
    path = urls.local_path(out).absolute()
    above = next(one for one in (path, *path.parents) if one.exists())
    if not (above.is_dir() or (is_file and above == path)):
        wrong = f'"{above}" is not a folder'
    elif not os.access(above, os.W_OK):
        wrong = f'"{above}" cannot be written to'
    else:
        return
    text = f"it cannot be created ({wrong}): choose another path."
    raise InputError(text, setting=setting, value=out)


def check_numbers(config: Any) -> None:
    """Check that the fields of a dataclass that are annotated as int or float hold such numbers;
    None is accepted where the annotation has it."""
    for field in fields(config):
        kinds = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
        value = getattr(config, field.name)
        if not {int, float} & {*kinds} or (value is None and type(None) in kinds):
            continue
        if str in kinds and isinstance(value, str):  # such as "4GB"
            continue
        number, wanted = (Real, "a number") if float in kinds else (Integral, "an integer")
        if not isinstance(value, number) or isinstance(value, bool):
            raise InputError(f"it must be {wanted}.", setting=field.name, value=value)


def check_least(setting: str, value: float | None, least: int = 1) -> None:
    """Raises InputError for a number below `least`; None is accepted."""
    if value is not None and value < least:
        raise InputError(f"it must be {least} or more.", setting=setting, value=value)


def check_positive(config: Any, *names: str, most: int | None = None) -> None:
    for name in names:
        value = getattr(config, name)
        check_least(name, value)
        if most is not None and value > most:
            raise InputError(f"it must be at most {most:,}.", setting=name, value=value)


def check_sizes(config: Any, *names: str) -> None:
    """Check sizes of layers: a larger one is a mistake, and nothing of it could be trained."""
    check_positive(config, *names, most=MAX_SIZE)


def check_fraction(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise InputError("it must be at least 0 and less than 1.", setting=name, value=value)


def check_weight(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < math.inf:
            raise InputError("it must be 0 or more.", setting=name, value=value)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting whose value has changed."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name}: was {self.before!r:.200}, is now {self.now!r:.200}"


def find_differences(
    before: Mapping[str, Any], now: Mapping[str, Any], may_differ: tuple[str, ...] = ()
) -> list[Difference]:
    """Settings that differ, by name; nested ones are named as "model.layers". Names that begin
    with one of `may_differ` do not count."""
    old, new = dict(flatten_settings(with_current_names(before))), dict(flatten_settings(now))
    return [
        Difference(name=name, before=old.get(name), now=new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and not name.startswith(may_differ)
    ]


@contextmanager
def offer_overwrite() -> Iterator[None]:
    """Add the advice to use `overwrite` to the engine's SettingsMismatchError: the engine itself
    does not know that setting."""
    try:
        yield
    except SettingsMismatchError as error:
        raise SettingsMismatchError(f"{error.text} {START_OVER}") from None


def with_current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` as read from a file, with names of an earlier version of clew replaced by the
    current ones."""
    return {
        _OLD_NAMES.get(name, name): with_current_names(value)
        if isinstance(value, Mapping)
        else value
        for name, value in settings.items()
    }


def flatten_settings(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values; nested ones are named as "model.layers"."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten_settings(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
