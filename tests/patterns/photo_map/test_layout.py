"""Where photos lie on the map."""

import numpy as np
import pytest

from clew.patterns.photo_map import layout
from clew.patterns.photo_map.layout import choose_shown, lay_out


def three_groups(each: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), each)
    return np.eye(3, 16)[labels] + random.normal(0, 0.05, (len(labels), 16)), labels


def share_with_near_relatives(positions: np.ndarray, labels: np.ndarray) -> float:
    distances = np.linalg.norm(positions[:, None] - positions, axis=2)
    np.fill_diagonal(distances, np.inf)
    return float((labels[distances.argmin(1)] == labels).mean())


def test_similar_photos_are_close_and_a_second_map_is_the_same() -> None:
    features, labels = three_groups(20)
    positions = lay_out(features)
    assert share_with_near_relatives(positions, labels) > 0.9
    assert positions.min() >= 0 and positions.max() <= 1
    assert np.array_equal(positions, lay_out(features))


def test_photos_beyond_the_limit_are_placed_among_their_neighbors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layout, "_MOST_LAID_OUT", 30)
    features, labels = three_groups(40)
    assert share_with_near_relatives(lay_out(features), labels) > 0.9


@pytest.mark.parametrize("count", [0, 1, 2, 4, 6])
@pytest.mark.parametrize("value", [0.0, 1.0, np.nan])
def test_few_or_equal_photos_have_a_map_too(count: int, value: float) -> None:
    positions = lay_out(np.full((count, 8), value))
    assert positions.shape == (count, 2) and np.isfinite(positions).all()


def test_the_photos_shown_are_the_urgent_ones_and_some_of_every_class() -> None:
    labels = np.array([0] * 900 + [1] * 90 + [2] * 10)
    shown = choose_shown(labels, 60, first=[5, 6, 7])
    assert len(shown) == 60 and {5, 6, 7} <= {*shown.tolist()}
    assert np.bincount(labels[shown]).min() == 10
    assert np.array_equal(choose_shown(labels, 2_000), np.arange(1_000))
