"""What a restricted pickle gets instead of the functions and classes it names. NumPy's own
`__setstate__` trusts its input, and arrays of objects hold arbitrary pickles; here arrays are
rebuilt from checked parts: only numbers, booleans and text of fixed width exist."""

import math
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from clew.base.errors import UnsafePickleError
from clew.base.texts import shortened

_MAX_KEY_LENGTH, _MAX_KEY_PARTS = 1000, 8
_MAX_DIMENSIONS, _LONGEST_DIMENSION, _LONGEST_EMPTY_DIMENSION = 32, 1 << 48, 1 << 16
_PLAIN_DTYPE = re.compile(r"[<>=|]?(\?|b1|[iu][1248]|f[248]|c8|c16|[SU][1-9]\d{0,5})")


class RefusedContentError(UnsafePickleError):
    """An allowed name was used for something that plain data does not need."""


def refuse_unless(fine: bool, what: str) -> None:
    if not fine:
        raise RefusedContentError(what)


def check_key(key: Any) -> Any:
    """Let a key of a dict or a member of a set through if it is small and flat: the hash of nested
    tuples takes time exponential in their depth."""
    flat = isinstance(key, tuple) and len(key) <= _MAX_KEY_PARTS and all(map(_is_small, key))
    refuse_unless(flat or _is_small(key), f"it uses {shortened(key)} as the key of a dict or set")
    return key


def _is_small(value: Any) -> bool:
    if isinstance(value, str | bytes):
        return len(value) <= _MAX_KEY_LENGTH
    if isinstance(value, int):
        return value.bit_length() <= 64
    return value is None or isinstance(value, float | complex | np.generic)


class Allowed:
    """A function that a pickle may call, and nothing else."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __repr__(self) -> str:
        return "a function"


class Inert:
    """Stands in for a class: it can be created and given a state, which it holds, and no more."""

    __slots__ = ("state",)

    state: Any

    def __new__(cls, *_arguments: Any) -> "Inert":
        self = super().__new__(cls)
        self.state = None
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __repr__(self) -> str:
        return "an object"


class DtypeStandIn:
    """What `numpy.dtype("f2", False, True)` returns: the dtype's code, and later its byte order."""

    __slots__ = ("_code", "_order")

    def __init__(self, code: Any, *_align_and_copy: Any) -> None:
        plain = isinstance(code, str) and _PLAIN_DTYPE.fullmatch(code) is not None
        refuse_unless(
            plain, f"it contains a NumPy array of type {shortened(code)}, not of plain numbers"
        )
        self._code = code
        self._order = "="

    def __setstate__(self, state: Any) -> None:
        """(version, byte order, subtype, names, fields, ...): only the byte order may be set."""
        refuse_unless(isinstance(state, tuple) and len(state) >= 5, "a NumPy dtype is malformed")
        known = isinstance(state[1], str) and state[1] in ("<", ">", "|", "=")
        refuse_unless(known, "a NumPy dtype has an unknown byte order")
        structured = any(part is not None for part in state[2:5])
        refuse_unless(not structured, "it contains a NumPy array of a structured type")
        self._order = state[1]

    def __repr__(self) -> str:
        return "numpy.dtype"

    def resolve(self) -> np.dtype:
        plain = np.dtype(self._code)
        return plain if self._order in "|=" else plain.newbyteorder(self._order)


class ArrayStandIn(np.ndarray):
    """An array that is empty until its state arrives, as pickle does it. A pickle never gets this
    class, only instances created by `_reconstruct`.
    """

    def __setstate__(self, state: Any) -> None:
        refuse_unless(isinstance(state, tuple) and len(state) == 5, "a NumPy array is malformed")
        refuse_unless(self.shape == (0,), "it fills the same NumPy array twice")
        _, shape, dtype, fortran, content = state
        plain = _resolve(dtype)
        _check_size(shape, plain, content)
        checked: Any = (1, tuple(shape), plain, bool(fortran), bytes(content))
        super().__setstate__(checked)


class _NdarrayName:
    """Stands in for `numpy.ndarray`, which pickles only pass to `_reconstruct`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "numpy.ndarray"


_NDARRAY = _NdarrayName()


def _reconstruct(kind: Any, _shape: Any, _code: Any) -> np.ndarray:
    refuse_unless(kind is _NDARRAY, "it contains a subclass of NumPy's array")
    return np.zeros(0, np.uint8).view(ArrayStandIn)


def _frombuffer(content: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> np.ndarray:
    """As in protocol 5: all bytes at once; `axes` preserves unusual memory layouts."""
    plain = _resolve(dtype)
    _check_size(shape, plain, content)
    fortran = isinstance(order, str) and order == "F"
    array = np.ndarray(tuple(shape), plain, bytes(content), order="F" if fortran else "C")
    return (array if axes is None else _transpose(array, axes)).view(ArrayStandIn)


def _transpose(array: np.ndarray, axes: Any) -> np.ndarray:
    if not is_shape(axes):
        raise ValueError(f"a NumPy array has the axes {shortened(axes)}")
    return array.transpose(axes)


def _scalar(dtype: Any, content: Any) -> Any:
    plain = _resolve(dtype)
    _check_size((), plain, content)
    return np.ndarray((), plain, bytes(content))[()]


def _resolve(dtype: Any) -> np.dtype:
    refuse_unless(isinstance(dtype, DtypeStandIn), "a NumPy array has no valid type")
    return dtype.resolve()


def _check_size(shape: Any, dtype: np.dtype, content: Any) -> None:
    if not isinstance(content, bytes | bytearray):
        raise RefusedContentError("a NumPy array contains objects instead of bytes")
    if not is_shape(shape) or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"a NumPy array of shape {shortened(shape)} has {len(content):,} bytes")
    if dtype.kind == "U":
        # NumPy checks the characters only when they are used, and then fails with an unclear error.
        characters = np.frombuffer(content, np.dtype("u4").newbyteorder(dtype.byteorder))
        if len(characters) and characters.max() > sys.maxunicode:
            raise ValueError("a NumPy array contains characters that do not exist")


def is_shape(shape: Any) -> bool:
    """Whether an array can have this shape. An array without values takes no bytes in a file, so
    its other dimensions must be plausible too."""
    if not isinstance(shape, tuple | list) or len(shape) > _MAX_DIMENSIONS:
        return False
    whole = all(isinstance(n, int) and 0 <= n <= _LONGEST_DIMENSION for n in shape)
    return whole and (0 not in shape or max(shape) <= _LONGEST_EMPTY_DIMENSION)


# NumPy 2 renamed `core` to `_core`; there are files of both versions.
NUMPY_NAMES: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): Allowed(DtypeStandIn),
    **{
        (f"numpy.{core}.{module}", name): Allowed(call)
        for core in ("core", "_core")
        for module, name, call in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _frombuffer),
        )
    },
}
