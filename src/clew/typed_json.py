"""JSON that clew writes and reads back: written without NaN, and read as the types that the code
expects, so that an edited file is one clear error."""

import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from clew.errors import InputError
from clew.foreign_text import shortened

_INT_LIMIT = 2**63


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The smallest and the largest number, or length of a list, text or dict: use it in
    `Annotated[int, Bounds(least=1)]`."""

    least: float = -math.inf
    most: float = math.inf

    def hold(self, value: Any) -> bool:
        number = len(value) if isinstance(value, list | tuple | str | dict) else value
        return number is None or self.least <= number <= self.most


Count = Annotated[int, Bounds(least=0, most=2**53)]
Seconds = Annotated[float, Bounds(least=0)]


def to_json(value: Any, *, indent: int | None = None, default: Any = None) -> str:
    """Strict JSON: NaN and infinity become null. Lone surrogates, which stand for bytes of file
    names that are not valid text, are escaped."""
    text = json.dumps(
        without_nan(value), indent=indent, ensure_ascii=False, allow_nan=False, default=default
    )
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(without_nan(value), indent=indent, allow_nan=False, default=default)
    return text


def without_nan(value: Any) -> Any:
    """The same value with None for numbers that JSON does not have, and Python's numbers for
    NumPy's."""
    if type(value).__module__ == "numpy" and not getattr(value, "shape", None):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_as_key(name): without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return value


def _as_key(name: Any) -> Any:
    return name if name is None or isinstance(name, str | int) else str(name)


def read_as(kind: Any, value: Any, name: str = "it") -> Any:
    """Parsed JSON as `kind`: a type, a dataclass, or a `list`, `tuple`, `dict`, `Literal`,
    `Annotated` with `Bounds`, or union of them. `name` is the name of the value for the message.

    Numbers are finite, and integers have 64 bits. Raises ValueError, which names the entry that is
    wrong and its value.
    """
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in _PARSERS:
        return _PARSERS[origin](kind, value, name)
    if is_dataclass(kind):
        return _read_record(kind, value, name)
    if not _is_scalar(kind, value):
        raise wrong(name, value)
    return float(value) if kind is float else value


def wrong(name: str, value: Any) -> ValueError:
    return ValueError(f"{name} is {shortened(value)}")


def _is_scalar(kind: Any, value: Any) -> bool:
    if kind in (None, types.NoneType):
        return value is None
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int):
        return kind in (int, float) and -_INT_LIMIT <= value < _INT_LIMIT
    return isinstance(value, kind) and (not isinstance(value, float) or math.isfinite(value))


def _read_annotated(kind: Any, value: Any, name: str) -> Any:
    inner, *bounds = get_args(kind)
    read = read_as(inner, value, name)
    if all(bound.hold(read) for bound in bounds if isinstance(bound, Bounds)):
        return read
    raise wrong(name, value)


def _read_union(kind: Any, value: Any, name: str) -> Any:
    if value is None and types.NoneType in get_args(kind):
        return None
    reason = wrong(name, value)
    for option in get_args(kind):
        if option is types.NoneType:
            continue
        try:
            return read_as(option, value, name)
        except ValueError as error:
            reason = error
    raise reason


def _read_literal(kind: Any, value: Any, name: str) -> Any:
    if isinstance(value, str | int) and value in get_args(kind):
        return value
    raise wrong(name, value)


def _read_list(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, list):
        raise wrong(name, value)
    container, inner = get_origin(kind), get_args(kind)
    if container is tuple and inner[-1] is not ...:
        if len(value) != len(inner):
            raise wrong(name, value)
        pairs = zip(inner, value, strict=True)
        return tuple(read_as(one, item, f"{name}[{n}]") for n, (one, item) in enumerate(pairs))
    return container(read_as(inner[0], item, f"{name}[{n}]") for n, item in enumerate(value))


def _read_dict(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise wrong(name, value)
    inner = get_args(kind)[1]
    return {key: read_as(inner, item, _inside(name, key)) for key, item in value.items()}


def _read_record(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise wrong(name, value)
    known = {field.name: field for field in fields(kind) if field.init}
    for key in value:
        if key not in known:
            raise ValueError(f"{_inside(name, key)} is unknown")
    for key, field in known.items():
        needed = field.default is MISSING and field.default_factory is MISSING
        if needed and key not in value:
            raise ValueError(f"{_inside(name, key)} is missing")
    hints = _hints(kind)
    read = {key: read_as(hints[key], item, _inside(name, key)) for key, item in value.items()}
    try:
        return kind(**read)
    except InputError as error:
        raise ValueError(str(error).rstrip(".")) from None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _inside(name: str, key: str) -> str:
    shown = shortened(key)[1:-1]
    return shown if name == "it" else f"{name}.{shown}"


_PARSERS: dict[Any, Callable[[Any, Any, str], Any]] = {
    Annotated: _read_annotated,
    Union: _read_union,
    types.UnionType: _read_union,
    Literal: _read_literal,
    list: _read_list,
    tuple: _read_list,
    dict: _read_dict,
}
