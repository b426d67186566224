"""JSON that clew wrote is read back as its types, and an edited file gives one clear error."""

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from clew.base.errors import InputError
from clew.base.typed_json import Bounds, compact_json, read_as, to_json


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError("it must be 1 or more.", setting="size", value=self.size)


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    share: Annotated[float, Bounds(least=0, most=1)] = 0.5
    kind: Literal["a", "b"] = "a"
    pairs: tuple[tuple[str, float], ...] = ()
    rows: list[dict[str, int | float | None]] | None = None


GOOD = {
    "inner": {"size": 2},
    "share": 1,
    "kind": "b",
    "pairs": [["x", 1.5]],
    "rows": [{"n": 1, "m": None}],
}


def test_valid_json_becomes_the_dataclass() -> None:
    read = read_as(Outer, GOOD)
    assert read == Outer(
        inner=Inner(size=2), share=1.0, kind="b", pairs=(("x", 1.5),), rows=[{"n": 1, "m": None}]
    )
    assert type(read.rows[0]["n"]) is int


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inner": None}, "inner is None"),
        ({"inner": {}}, "inner.size is missing"),
        ({"inner": {"size": True}}, "inner.size is True"),
        ({"inner": {"size": 2**70}}, "inner.size is 1180591620717411303424"),
        ({"inner": {"size": 0}}, "size is 0: it must be 1 or more"),
        ({"share": math.nan}, "share is nan"),
        ({"share": 1.5}, "share is 1.5"),
        ({"kind": ["a"]}, r"kind is \['a'\]"),
        ({"pairs": [["x"]]}, r"pairs\[0\] is \['x'\]"),
        ({"rows": [{"n": "1"}]}, r"rows\[0\].n is '1'"),
        ({"new": 1}, "new is unknown"),
    ],
)
def test_error_names_the_entry_and_its_value(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        read_as(Outer, {**GOOD, **change})


def test_written_json_has_no_nan() -> None:
    value = {"a": [math.nan, 1.0], "b": {"c": -math.inf}, "d": np.float32("nan"), "e": "\udc80"}
    text = to_json(value)
    assert json.loads(text) == {"a": [None, 1.0], "b": {"c": None}, "d": None, "e": "\udc80"}
    assert text.encode() and "NaN" not in text and "Infinity" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1.5, "é"]}, '{"a":[1.5,"\\u00e9"]}'),
        ([math.nan, {"b": -math.inf}], '[null,{"b":null}]'),
    ],
)
def test_compact_json_is_strict(value: Any, text: str) -> None:
    assert compact_json(value) == text
