"""What a restricted pickle gets to see in place of the functions and classes it names. Numpy's own
`__setstate__` trusts its input, and arrays of objects hold arbitrary pickles; here arrays are
rebuilt from checked parts: only numbers, booleans and text of fixed width exist."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from clew.errors import UnsafePickleError

_PLAIN_DTYPE = re.compile(r"[<>=|]?(\?|b1|[iu][1248]|f[248]|c8|c16|[SU][1-9]\d{0,5})")


class RefusedContentError(UnsafePickleError):
    """An allowed name was used for something that plain data has no need of."""


def refuse_unless(fine: bool, what: str) -> None:
    if not fine:
        raise RefusedContentError(what)


class Allowed:
    """A function that a pickle may call and do nothing else with.

    A bare function would not do: pickle's BUILD sets attributes on whatever it is given, so a
    file could change our own functions for the rest of the process. `__setstate__` is asked
    first, and refuses.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise RefusedContentError("it tries to change a function")


class Inert:
    """Stands in for a class: it can be made and given a state, which it holds, and no more."""

    __slots__ = ("state",)

    state: Any

    def __new__(cls, *_arguments: Any) -> "Inert":
        self = super().__new__(cls)
        self.state = None
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state


class DtypeStandIn:
    """What `numpy.dtype("f2", False, True)` gives: the dtype's code, and later its byte order."""

    __slots__ = ("_code", "_order")

    def __init__(self, code: Any, *_align_and_copy: Any) -> None:
        plain = isinstance(code, str) and _PLAIN_DTYPE.fullmatch(code) is not None
        refuse_unless(plain, f"it holds a numpy array of type {code!r:.40}, not of plain numbers")
        self._code = code
        self._order = "="

    def __setstate__(self, state: Any) -> None:
        """(version, byte order, subtype, names, fields, ...): only the byte order may be set."""
        refuse_unless(isinstance(state, tuple) and len(state) >= 5, "a numpy dtype is malformed")
        refuse_unless(state[1] in ("<", ">", "|", "="), "a numpy dtype has a strange byte order")
        structured = any(part is not None for part in state[2:5])
        refuse_unless(not structured, "it holds a numpy array of structured type")
        self._order = state[1]

    def resolve(self) -> np.dtype:
        plain = np.dtype(self._code)
        return plain if self._order in "|=" else plain.newbyteorder(self._order)


class ArrayStandIn(np.ndarray):
    """An array that is empty until its state arrives, as pickle has it.

    A pickle never gets hold of this class, only of instances that `_reconstruct` made.
    """

    def __setstate__(self, state: Any) -> None:
        refuse_unless(isinstance(state, tuple) and len(state) == 5, "a numpy array is malformed")
        refuse_unless(self.shape == (0,), "it fills the same numpy array twice")
        _, shape, dtype, fortran, content = state
        plain = _resolve(dtype)
        _check_size(shape, plain, content)
        checked: Any = (1, tuple(shape), plain, bool(fortran), bytes(content))
        super().__setstate__(checked)


class _NdarrayName:
    """Stands for `numpy.ndarray`, which pickles only hand to `_reconstruct`."""

    __slots__ = ()

    def __call__(self, *_arguments: Any) -> Any:
        raise RefusedContentError("it makes a numpy array by hand")

    def __setstate__(self, state: Any) -> None:
        raise RefusedContentError("it tries to change numpy.ndarray")


_NDARRAY = _NdarrayName()


def _reconstruct(kind: Any, _shape: Any, _code: Any) -> np.ndarray:
    refuse_unless(kind is _NDARRAY, "it holds a subclass of numpy's array")
    return np.zeros(0, np.uint8).view(ArrayStandIn)


def _frombuffer(content: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> np.ndarray:
    """Protocol 5's way: the bytes at once; `axes` keeps odd memory layouts as they were."""
    plain = _resolve(dtype)
    _check_size(shape, plain, content)
    fortran = order == "F"
    array = np.ndarray(tuple(shape), plain, bytes(content), order="F" if fortran else "C")
    return (array if axes is None else array.transpose(axes)).view(ArrayStandIn)


def _scalar(dtype: Any, content: Any) -> Any:
    plain = _resolve(dtype)
    _check_size((), plain, content)
    return np.ndarray((), plain, bytes(content))[()]


def _resolve(dtype: Any) -> np.dtype:
    refuse_unless(isinstance(dtype, DtypeStandIn), "a numpy array has no proper type")
    return dtype.resolve()


def _check_size(shape: Any, dtype: np.dtype, content: Any) -> None:
    if not isinstance(content, bytes | bytearray):
        raise RefusedContentError("a numpy array holds objects instead of bytes")
    if not _is_shape(shape) or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"a numpy array of shape {shape!r:.60} has {len(content):,} bytes")
    if dtype.kind == "U":
        # Numpy looks at the characters only when they are used, and then fails unkindly.
        order = "be" if dtype.byteorder == ">" else "le"
        bytes(content).decode(f"utf-32-{order}", "surrogatepass")


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, Sequence) and all(isinstance(n, int) and n >= 0 for n in shape)


# Numpy 2 renamed `core` to `_core`; files of both ages are about.
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
