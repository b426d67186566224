"""Numbers as people read them: never more than is true."""

import pytest

from clew.wording import counted, tenth_percent, whole_percent


@pytest.mark.parametrize(
    ("share", "text"),
    [
        *((1.0, "100%"), (0.99999999, "99.9%"), (0.995, "99.5%"), (0.99, "99%"), (0.6, "60%")),
        *((0.5999, "59%"), (0.29, "29%"), (0.01, "1%"), (0.001, "<1%"), (0, "0%")),
    ],
)
def test_what_is_not_reached_is_not_told(share: float, text: str) -> None:
    assert whole_percent(share) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100.0%"), (0.9999, "99.9%"), (0.9125, "91.2%"), (0.91251, "91.3%"), (0, "0.0%")],
)
def test_not_all_is_not_told_as_all(share: float, text: str) -> None:
    assert tenth_percent(share) == text


def test_one_and_many() -> None:
    assert counted(1, "photo") == "1 photo" and counted(1200, "class", "classes") == "1,200 classes"
