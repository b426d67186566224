"""Values of any size, depth and kind are shown in a few words, in no time."""

from typing import Any

import numpy as np
import pytest

from clew.base.texts import shortened
from tests.hallucination.legacy.hostile import nested


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (nested(), "((...), (...))"),
        ([nested()] * 1000, "[((...), (...)), "),
        ({"a": nested()}, "{'a': ((...), (...))}"),
        (1 << 10**6, "an integer of 1,000,001 bits"),
        ([-(1 << 10**6)], "[an integer of 1,000,001 bits]"),
        (b"\xff" * 10**7, r"b'\\xff"),
        ("x" * 10**7, "'xxxx"),
        (np.zeros((2,) * 20), "<ndarray of shape (2, 2, "),
        (np.str_("y" * 10**6), "'yyyy"),
        (np.float32(0.5), "0.5"),
        ("a", "'a'"),
        ({3, 1}, "{1, 3}"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value_is_shown_in_a_few_words(value: Any, shown: str) -> None:
    text = shortened(value)
    assert len(text) <= 400
    assert shown.replace("\\\\", "\\") in text
