"""Caches a folder and reads it twice from disk; prints by how many bytes the process grew, and how
many bytes of images it was given."""

import gc
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from clew.base.progress import Event
from clew.engine import LoadSettings
from clew.patterns.cache.build import cache_photos
from clew.patterns.cache.samples import ImageSamples, open_images
from clew.patterns.photos import PhotoFolder, find_classes


class Memory:
    """The peak memory of this process so far."""

    def __init__(self) -> None:
        gc.collect()
        self._process = psutil.Process()
        self._first = self._process.memory_info().rss
        self.grown = 0

    def look(self) -> None:
        self.grown = max(self.grown, self._process.memory_info().rss - self._first)

    def __call__(self, _: Event) -> None:
        self.look()


def main(root: Path, cache_dir: Path, size: int) -> None:
    folder = find_classes(root)
    few = replace(folder, photos=folder.photos[:40])
    run(few, cache_dir / "few", size, Memory())  # loads what is loaded late
    memory = Memory()
    read = run(folder, cache_dir, size, memory)
    sys.stdout.write(f"{memory.grown} {read}\n")


def run(folder: PhotoFolder, cache_dir: Path, size: int, memory: Memory) -> int:
    """Bytes of images in all batches."""
    read = 0
    cached = cache_photos(folder, cache_dir, size, workers=2, reporter=memory)
    memory.look()
    samples = ImageSamples(cached.store, cached.rows, np.zeros_like(cached.rows), place="disk")
    loader = open_images(LoadSettings(batch_size=16, num_workers=2, shuffle=True), samples)
    for _ in range(2):
        for batch in loader:
            read += batch["image"].numel()
            memory.look()
    return read


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
