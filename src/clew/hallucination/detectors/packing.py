"""Fitted parts of a detector as JSON and tensors, and back: a dataclass of numbers, texts, arrays,
other dataclasses and lists of these. Its type hints say what a file must contain."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from clew.base.errors import InputError
from clew.base.typed_json import Bounds, read_as

Part = TypeVar("Part")
_MOST_PARTS = Bounds(most=4096)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """`about` is JSON; the names of the tensors are paths, such as "linear.weights"."""

    about: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def under(self, name: str) -> dict[str, Tensor]:
        return {f"{name}.{key}": tensor for key, tensor in self.tensors.items()}

    def inside(self, name: str) -> dict[str, Tensor]:
        """The tensors below a path."""
        start = f"{name}."
        return {k.removeprefix(start): t for k, t in self.tensors.items() if k.startswith(start)}


def pack(part: Any) -> Packed:
    """A fitted part as JSON and tensors. Arrays whose values all fit in half precision are kept in
    it."""
    packed = Packed()
    for one in fields(part):
        _pack_value(packed, one.name, getattr(part, one.name))
    return packed


def unpack(kind: type[Part], packed: Packed) -> Part:
    """The part with float32 tensors on the CPU. Raises ValueError, which names the entry, if
    something is missing, unexpected, of another type, or not finite."""
    left = dict(packed.tensors)
    found = _Unpacking(left).read_part(kind, packed.about, "")
    if left:
        raise ValueError(f"{next(iter(left))[:100]!r} is unexpected")
    return found


def on_device(part: Part, device: torch.device | str) -> Part:
    """The same part with its tensors on a device."""
    return _map_arrays(part, lambda array: _as_tensor(array).to(device))


def on_host(part: Part) -> Part | None:
    """The same part with NumPy arrays that share the memory of its tensors; None if these are not
    on a CPU."""
    if any(isinstance(one, Tensor) and not one.is_cpu for one in _arrays_of(part)):
        return None
    return _map_arrays(part, lambda array: array.numpy() if isinstance(array, Tensor) else array)


def _arrays_of(value: Any) -> Iterator[Any]:
    if isinstance(value, np.ndarray | Tensor):
        yield value
    elif is_dataclass(value):
        for one in fields(value):
            yield from _arrays_of(getattr(value, one.name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _arrays_of(item)


def _pack_value(packed: Packed, name: str, value: Any) -> None:
    if isinstance(value, np.ndarray | Tensor):
        packed.tensors[name] = _as_small(_as_tensor(value))
    elif is_dataclass(value):
        inner = pack(value)
        packed.about[name] = inner.about
        packed.tensors.update(inner.under(name))
    elif isinstance(value, list | tuple) and any(map(_has_arrays, value)):
        parts = Packed()
        for number, one in enumerate(value):
            _pack_value(parts, str(number), one)
        packed.about[name] = [parts.about.get(str(number)) for number in range(len(value))]
        packed.tensors.update(parts.under(name))
    else:
        packed.about[name] = list(value) if isinstance(value, tuple) else value


def _has_arrays(value: Any) -> bool:
    return is_dataclass(value) or isinstance(value, np.ndarray | Tensor)


def _as_tensor(value: Any) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


def _as_small(tensor: Tensor) -> Tensor:
    tensor = tensor.float().cpu().contiguous()
    half = tensor.half()
    return half if torch.equal(half.float(), tensor) else tensor


@dataclass(frozen=True)
class _Unpacking:
    """Takes tensors out of `left` as they are used."""

    left: dict[str, Tensor]

    def read_part(self, kind: Any, about: Any, path: str) -> Any:
        hints = get_type_hints(kind, include_extras=True)
        known = {one.name: one for one in fields(kind) if one.init}
        about = read_as(dict[str, Any], about, path.rstrip(".") or "it")
        for name in about:
            if name not in known:
                raise ValueError(f"{path}{name[:100]} is unknown")
        values = {
            name: self.read_value(hints[name], about, name, path)
            for name, one in known.items()
            if name in about or _is_array(hints[name]) or one.default is MISSING
        }
        try:
            return kind(**values)
        except InputError as error:
            raise ValueError(str(error).rstrip(".")) from None

    def read_value(self, hint: Any, about: Mapping[str, Any], name: str, path: str) -> Any:
        if _is_array(hint):
            return self.take(hint, f"{path}{name}")
        if name not in about:
            raise ValueError(f"{path}{name} is missing")
        if is_dataclass(hint):
            return self.read_part(hint, about[name], f"{path}{name}.")
        inner = get_args(hint)[0] if get_origin(hint) in (Sequence, tuple, list) else None
        if inner is not None and (is_dataclass(inner) or _is_array(inner)):
            items = read_as(list[Any], about[name], f"{path}{name}")
            if not _MOST_PARTS.hold(items):
                raise ValueError(f"{path}{name} has {len(items):,} entries")
            named = {str(place): item for place, item in enumerate(items)}
            parts = (self.read_value(inner, named, n, f"{path}{name}.") for n in named)
            return tuple(parts)
        return read_as(hint, about[name], f"{path}{name}")

    def take(self, hint: Any, path: str) -> Tensor:
        if path not in self.left:
            raise ValueError(f"{path} is missing")
        found = self.left.pop(path)
        dims = getattr(hint, "dims", None)  # a plain array has any
        if not found.is_floating_point() or dims is not None and found.ndim != len(dims):
            raise ValueError(f"{path} has shape {list(found.shape)} and type {found.dtype}")
        if not found.isfinite().all():
            raise ValueError(f"{path} contains NaN or infinity")
        return found.float()


def _is_array(hint: Any) -> bool:
    """Whether a hint is np.ndarray or jaxtyping's, such as `Float32[np.ndarray, " features"]`."""
    return hint is np.ndarray or (hasattr(hint, "array_type") and hasattr(hint, "dims"))


def _map_arrays(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, np.ndarray | Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            one.name: _map_arrays(getattr(value, one.name), change)
            for one in fields(value)
            if one.init
        }
        return replace(value, **changed)
    if isinstance(value, list | tuple) and any(map(_has_arrays, value)):
        return tuple(_map_arrays(one, change) for one in value)
    return value
