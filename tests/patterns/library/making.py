"""Tiny photos in folders."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from clew.patterns.library.importing import ImportResult


def draw(path: Path, seed: int, side: int = 24) -> Path:
    """A photo of colored noise: another seed, another image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 255, (side, side, 3), np.uint8)
    Image.fromarray(noise).save(path)
    return path


def make_photos(root: Path, counts: Mapping[str, int], first_seed: int = 0) -> Path:
    """One folder per class (or "train/cats") with that many photos, all different."""
    seed = first_seed
    for folder, count in counts.items():
        for number in range(count):
            draw(root / folder / f"{number}.png", seed)
            seed += 1
    return root


def contents(root: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def tally(result: ImportResult) -> dict[str, tuple[int, int, int]]:
    """Added, already there and excluded per class."""
    counts = [result.count(name) for name in ("added", "already there", "excluded")]
    labels = sorted(set().union(*counts))
    return {label: (counts[0][label], counts[1][label], counts[2][label]) for label in labels}


def pretend_trained(run: Path, names: list[str], accuracy: float = 0.9) -> Path:
    """What a finished run leaves behind, as far as a set looks at it."""
    run.mkdir(parents=True)
    (run / "best.safetensors").write_bytes(b"")
    lines = ["name,class,split,digest", *(f'"{name}",c,train,0' for name in names)]
    (run / "splits.csv").write_text(os.linesep.join(lines), encoding="utf-8")
    results = (
        f'{{"test_accuracy": {accuracy}, "test_accuracy_ci": [0.8, 0.95], '
        f'"data": {{"photos": {len(names)}}}}}'
    )
    (run / "results.json").write_text(results, encoding="utf-8")
    return run
