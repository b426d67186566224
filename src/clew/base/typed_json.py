"""JSON that clew writes and reads back: written without NaN, and read as the types that the code
expects, so that an edited file is one clear error."""

import json
import math
import re
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from clew.base.errors import InputError
from clew.base.texts import shortened

Reader = Callable[[Any], Any]
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


@dataclass(frozen=True)
class Matches:
    """The regular expression that a text matches: use it in `Annotated[str, Matches("[a-z]+")]`."""

    pattern: str

    def hold(self, value: str) -> bool:
        return re.fullmatch(self.pattern, value, re.ASCII) is not None


Count = Annotated[int, Bounds(least=0, most=2**53)]
Seconds = Annotated[float, Bounds(least=0)]


def compact_json(value: Any) -> str:
    """Strict JSON in one line of ASCII: NaN and infinity become null. Fast where there are none,
    which is nearly always."""
    try:
        return _encode(value)
    except ValueError:
        return _encode(without_nan(value))


_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


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
    """Parsed JSON as `kind`: a type, a dataclass, a TypedDict (other members are kept as they are),
    or a `list`, `tuple`, `dict`, `Literal`, `Annotated` with `Bounds` or `Matches`, or union of
    them. `name` is the name of the value for the message.

    Numbers are finite, and integers have 64 bits. Raises ValueError, which names the entry that is
    wrong and its value.
    """
    try:
        return _reader(kind)(value)
    except _EntryError as error:
        raise ValueError(error.describe(name)) from None


def wrong(name: str, value: Any) -> ValueError:
    return ValueError(f"{name} is {shortened(value)}")


class _EntryError(ValueError):
    """What is wrong with an entry; the path to it is collected on the way out."""

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self._path: list[str] = []

    @classmethod
    def of(cls, value: Any) -> "_EntryError":
        return cls(f"is {shortened(value)}")

    def inside(self, place: str) -> "_EntryError":
        self._path.insert(0, place)
        return self

    def describe(self, name: str) -> str:
        path = "".join(self._path)
        return f"{path.removeprefix('.') if name == 'it' and path else name + path} {self._reason}"


@cache
def _reader(kind: Any) -> Reader:
    """The function that reads values of a type, built once: a manifest has many entries."""
    origin = get_origin(kind)
    if kind is Any:
        return lambda value: value
    if origin in _BUILDERS:
        return _BUILDERS[origin](kind)
    if is_typeddict(kind):
        return _read_open_record(kind)
    return _read_record(kind) if is_dataclass(kind) else _read_scalar(kind)


def _read_scalar(kind: Any) -> Reader:
    def read(value: Any) -> Any:
        if kind is str and type(value) is str:
            return value  # most entries of a large file
        if not _is_scalar(kind, value):
            raise _EntryError.of(value)
        return float(value) if kind is float else value

    return read


def _is_scalar(kind: Any, value: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int):
        return (kind is int or kind is float) and -_INT_LIMIT <= value < _INT_LIMIT
    if kind in (None, types.NoneType):
        return value is None
    return isinstance(value, kind) and (not isinstance(value, float) or math.isfinite(value))


def _read_annotated(kind: Any) -> Reader:
    inner, *notes = get_args(kind)
    read_inner = _reader(inner)
    checks = [note.hold for note in notes if isinstance(note, Bounds | Matches)]

    def read(value: Any) -> Any:
        found = read_inner(value)
        for holds in checks:
            if not holds(found):
                raise _EntryError.of(value)
        return found

    return read


def _read_union(kind: Any) -> Reader:
    options = [_reader(option) for option in get_args(kind) if option is not types.NoneType]
    may_be_none = types.NoneType in get_args(kind)

    def read(value: Any) -> Any:
        if value is None and may_be_none:
            return None
        reason: ValueError = _EntryError.of(value)
        for option in options:
            try:
                return option(value)
            except ValueError as error:
                reason = error
        raise reason

    return read


def _read_literal(kind: Any) -> Reader:
    choices = get_args(kind)

    def read(value: Any) -> Any:
        if isinstance(value, str | int) and value in choices:
            return value
        raise _EntryError.of(value)

    return read


def _read_list(kind: Any) -> Reader:
    container, inner = get_origin(kind), get_args(kind)
    has_fixed_size = container is tuple and inner[-1] is not ...
    readers = [_reader(one) for one in inner if one is not ...]

    def read(value: Any) -> Any:
        if not isinstance(value, list) or (has_fixed_size and len(value) != len(readers)):
            raise _EntryError.of(value)
        each = readers if has_fixed_size else readers * len(value)
        found = []
        for place, (read_one, item) in enumerate(zip(each, value, strict=True)):
            try:
                found.append(read_one(item))
            except _EntryError as error:
                raise error.inside(f"[{place}]") from None
        return found if container is list else tuple(found)

    return read


def _read_dict(kind: Any) -> Reader:
    read_key, read_item = map(_reader, get_args(kind))

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _EntryError.of(value)
        for key in value:
            try:
                read_key(key)
            except _EntryError:
                raise _EntryError(f"has the entry {shortened(key)}") from None
        return _read_members(value, dict.fromkeys(value, read_item))

    return read


def _read_members(value: dict[str, Any], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """The members of an object; those without a reader as they are."""
    found = {}
    for key, item in value.items():
        try:
            found[key] = readers[key](item) if key in readers else item
        except _EntryError as error:
            raise error.inside(_member(key)) from None
    return found


def _read_record(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    known = [field for field in fields(kind) if field.init]
    readers = {field.name: _reader(hints[field.name]) for field in known}
    needed = {f.name for f in known if f.default is MISSING and f.default_factory is MISSING}

    def read(value: Any) -> Any:
        _check_members(value, needed)
        for key in value:
            if key not in readers:
                raise _EntryError("is unknown").inside(_member(key))
        members = _read_members(value, readers)
        try:
            return kind(**members)
        except InputError as error:
            raise ValueError(str(error).rstrip(".")) from None

    return read


def _read_open_record(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    readers = {name: _reader(_unmarked(hint)) for name, hint in hints.items()}

    def read(value: Any) -> Any:
        _check_members(value, kind.__required_keys__)
        return _read_members(value, readers)

    return read


def _unmarked(hint: Any) -> Any:
    """A member's type without `Required` or `NotRequired`."""
    return get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint


def _check_members(value: Any, required: Collection[str]) -> None:
    if not isinstance(value, dict):
        raise _EntryError.of(value)
    for name in required:
        if name not in value:
            raise _EntryError("is missing").inside(f".{name}")


def _member(key: str) -> str:
    return f".{shortened(key)[1:-1]}"


_BUILDERS: dict[Any, Callable[[Any], Reader]] = {
    Annotated: _read_annotated,
    Union: _read_union,
    types.UnionType: _read_union,
    Literal: _read_literal,
    list: _read_list,
    tuple: _read_list,
    dict: _read_dict,
}
