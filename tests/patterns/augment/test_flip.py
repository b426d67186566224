"""Photos are mirrored only if left and right do not distinguish classes."""

import numpy as np

from clew.patterns.augment.operations import decide_flip


def arrows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Bright on the left (0) or on the right (1), with noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    images = random.integers(0, 80, (count, 32, 32, 3))
    for image, label in zip(images, labels, strict=True):
        image[8:24, 16 * label : 16 * label + 12] += 150
    return images.astype(np.uint8), labels


def test_classes_that_differ_left_and_right_are_not_mirrored() -> None:
    is_allowed, why = decide_flip(*arrows(200))
    assert not is_allowed
    assert "left and right seem to matter" in why


def test_classes_that_differ_up_and_down_are_mirrored() -> None:
    images, labels = arrows(200)
    is_allowed, why = decide_flip(images.transpose(0, 2, 1, 3), labels)
    assert is_allowed
    assert "flipped ones" in why


def test_classes_are_mirrored_where_neighbors_say_little_about_them() -> None:
    random = np.random.default_rng(3)
    images = random.integers(0, 256, (300, 32, 32, 3)).astype(np.uint8)
    for seed in range(5):
        is_allowed, why = decide_flip(images, np.random.default_rng(seed).integers(0, 20, 300))
        assert is_allowed, why


def bursts(scenes: int = 60, frames: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Photos of scenes, each in a class by chance, several nearly alike of each."""
    random = np.random.default_rng(5)
    coarse = random.integers(0, 256, (scenes, 6, 6, 3)).repeat(6, 1).repeat(6, 2)
    images = coarse.repeat(frames, 0) + random.normal(0, 10, (scenes * frames, 36, 36, 3))
    return images.clip(0, 255).astype(np.uint8), random.integers(0, 4, scenes).repeat(frames)


def test_bursts_of_one_scene_do_not_count_as_neighbors() -> None:
    is_allowed, why = decide_flip(*bursts())
    assert is_allowed, why


def test_classes_that_differ_left_and_right_are_not_mirrored_in_bursts_either() -> None:
    images, _ = bursts()
    labels = np.arange(60).repeat(6) % 2
    for image, label in zip(images, labels, strict=True):
        image[6:30, 4 + 16 * label : 16 + 16 * label] = 255
    is_allowed, why = decide_flip(images, labels)
    assert not is_allowed, why


def test_two_photos_are_enough_to_decide() -> None:
    images, _ = arrows(2)
    assert decide_flip(images, np.array([0, 1])) == (
        True,
        "the nearest neighbor has the same class for 0% of photos, and for 0% of flipped ones",
    )
