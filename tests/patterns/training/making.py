"""Folders of small colored photos, and short runs on them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from clew.engine import PlanRequest
from clew.patterns.augment import AugmentConfig
from clew.patterns.training import PatternsConfig
from clew.patterns.training.config import usual_train

COLORS = {"azul": (40, 60, 220), "maçã ñ": (60, 200, 60), "red 🍎": (220, 50, 40)}
PLAIN = PlanRequest(device="cpu", calibrate=False, batch_size=16, num_workers=0)
_SIDE = 20


def write_photos(folder: Path, counts: Mapping[str, int], *, first: int = 0) -> Path:
    """Photos of one color per class; `first` is the number of the first one: equal numbers of a
    class are identical images."""
    for name, count in counts.items():
        for number in range(first, first + count):
            write_photo(folder / name / f"photo {number}.png", name, number)
    return folder


def write_photo(path: Path, name: str, number: int) -> Path:
    colors = list(COLORS.values())
    place = list(COLORS).index(name) if name in COLORS else sum(name.encode()) % len(colors)
    random = np.random.default_rng([*name.encode(), number])
    pixels = np.array(colors[place]) + random.integers(-40, 40, (_SIDE, _SIDE, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    return path


def small_run(data: Path, out: Path, **changes: Any) -> PatternsConfig:
    """A few epochs of the smallest network, without any randomness."""
    options: dict[str, Any] = {
        "network": "tiny",
        "image_size": 16,
        "epochs": 4,
        "augment": AugmentConfig.nothing(),
        "train": replace(usual_train(), lr=0.02),
        "request": PLAIN,
    }
    return PatternsConfig(data=data, out=out, **options | changes)
