"""Numbers formatted for readers never overstate the value."""

import pytest

from clew.base.texts import (
    bytes_text,
    counted,
    duration_text,
    rate_text,
    step_text,
    tenth_percent,
    whole_percent,
)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        *((1.0, "100%"), (0.99999999, "99.9%"), (0.995, "99.5%"), (0.99, "99%"), (0.6, "60%")),
        *((0.5999, "59%"), (0.29, "29%"), (0.01, "1%"), (0.001, "<1%"), (0, "0%")),
    ],
)
def test_percentages_are_truncated_not_rounded(share: float, text: str) -> None:
    assert whole_percent(share) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100.0%"), (0.9999, "99.9%"), (0.9125, "91.2%"), (0.91251, "91.3%"), (0, "0.0%")],
)
def test_less_than_all_is_never_shown_as_all(share: float, text: str) -> None:
    assert tenth_percent(share) == text


@pytest.mark.parametrize(
    ("count", "nouns", "text"),
    [
        (1, ("trace",), "1 trace"),
        (0, ("trace",), "0 traces"),
        (1200, ("batch", "batches"), "1,200 batches"),
        (1, ("batch", "batches"), "1 batch"),
    ],
)
def test_counts_agree_with_their_nouns(count: int, nouns: tuple[str, ...], text: str) -> None:
    assert counted(count, *nouns) == text


def test_sizes_durations_and_rates_have_three_significant_digits() -> None:
    assert [bytes_text(b) for b in (1, 999, 1500, 2.5e6, 139e9, 2e12)] == [
        *("1 byte", "999 bytes", "1.5 kB"),
        *("2.5 MB", "139 GB", "2 TB"),
    ]
    assert [duration_text(s) for s in (0, 45, 600, 9000, 180_000)] == [
        *("0 s", "45 s", "10 min"),
        *("2 h 30 min", "2 days 2 h"),
    ]
    assert [step_text(s) for s in (0, 8.33e-6, 0.0021, 0.1234, 3.21, 45)] == [
        *("0 s", "8.3 µs", "2.1 ms", "123 ms"),
        *("3.2 s", "45 s"),
    ]
    assert [rate_text(r) for r in (7.25, 143.4, 90_412)] == [
        *("7.25 samples/s", "143 samples/s"),
        "90,400 samples/s",
    ]
