"""The photos of a run: found, decoded, split, and opened in batches."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from clew.base.errors import InputError
from clew.base.progress import Reporter
from clew.engine.plan import look_at_machine
from clew.patterns.cache.build import CachedPhotos, cache_photos, choose_size
from clew.patterns.photos import SPLITS, Fault, PhotoFolder, assign_splits
from clew.patterns.trained.tables import RunTables, SplitRow
from clew.patterns.training.config import PatternsConfig, TrainingChoice
from clew.patterns.training.start import Start
from clew.storage.reading import hash_text

_HASH_LETTERS = 16


@dataclass(frozen=True, kw_only=True)
class TrainingPhotos:
    """The usable photos, each with its class (an index into `classes`) and its split (in
    SPLITS)."""

    folder: PhotoFolder
    cached: CachedPhotos
    size: TrainingChoice
    classes: tuple[str, ...]
    labels: Int64[np.ndarray, " photos"]
    splits: Int64[np.ndarray, " photos"]
    # By digest, of the runs whose weights this one starts from: photos that are not here, and test
    # photos that those runs were trained on.
    earlier: dict[str, str]

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (*self.folder.faults, *self.cached.faults)

    def tables(self) -> RunTables:
        """What was found, for people and for later evaluation."""
        found = zip(self.cached.photos, self.splits.tolist(), self.cached.digests, strict=True)
        rows = [
            SplitRow(name=photo.name, label=photo.label or "", split=SPLITS[split], digest=digest)
            for photo, split, digest in found
        ]
        return RunTables(splits=rows, excluded=self.faults, earlier=self.earlier)

    def count_seen_before(self) -> int:
        """Test photos, according to their folders, that the starting weights were trained on: they
        make the test accuracy too high."""
        return sum(digest in self.earlier for digest in self.cached.digests)

    def places(self, split: str) -> Int64[np.ndarray, " photos"]:
        """Indices of a split's photos among all, in the order of their names."""
        return np.flatnonzero(self.splits == SPLITS.index(split))

    def count_classes(self, split: str) -> list[int]:
        """Photos per class."""
        labels = self.labels[self.places(split)]
        return np.bincount(labels, minlength=len(self.classes)).tolist()

    def describe(self) -> dict[str, Any]:
        """The photos as described in results.json."""
        return {
            "folder": str(self.folder.root),
            "photos": len(self.cached.photos),
            "excluded": dict(Counter(fault.kind for fault in self.faults).most_common()),
            "other_files": self.folder.other_files,
            "splits": {split: len(self.places(split)) for split in SPLITS},
            "test_seen_before": self.count_seen_before(),
            "split_folders": self.folder.split_folders,
        }

    def identify(self) -> dict[str, Any]:
        """What identifies these photos: images, classes and splits, not their paths."""
        splits = [SPLITS[split] for split in self.splits.tolist()]
        labels = [self.classes[label] for label in self.labels.tolist()]
        lines = sorted(zip(self.cached.digests, labels, splits, strict=True))
        digest = hash_text(*(text for line in lines for text in line))[:_HASH_LETTERS]
        return {"photos": digest, **{split: splits.count(split) for split in SPLITS}}


def prepare_photos(
    folder: PhotoFolder,
    config: PatternsConfig,
    start: Start | None,
    *,
    sizes: tuple[int, int],
    check_size: Callable[[int], None],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> TrainingPhotos:
    """Decode and split the photos that were found. An image size that is not given is chosen within
    `sizes`; `check_size` can reject it before a large set is decoded for nothing.

    Raises InputError for folders that cannot be trained on, TrainingStoppedError when `should_stop`
    returns true.
    """
    size = config.image_size or (start.image_size if start else choose_size(folder, sizes))
    check_size(size)
    cached = cache_photos(
        folder,
        config.images,
        size,
        cache_dir=config.cache_dir,
        workers=look_at_machine().cores,
        reporter=reporter,
        should_stop=should_stop,
    )
    _refuse_lost_classes(folder, cached, config.data)
    known = start.splits if start is not None else {}
    splits = assign_splits(cached.photos, cached.digests, shares=config.shares, known=known)
    places = {name: place for place, name in enumerate(folder.classes)}
    return TrainingPhotos(
        folder=folder,
        cached=cached,
        size=TrainingChoice(value=size, reason=_explain_size(config.image_size, start, cached)),
        classes=folder.classes,
        labels=np.array([places[photo.label or ""] for photo in cached.photos], np.int64),
        splits=np.array([SPLITS.index(split) for split in splits], np.int64),
        earlier=_find_earlier(known, dict(zip(cached.digests, splits, strict=True))),
    )


def _find_earlier(known: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """The earlier splits that would otherwise be forgotten: those of photos that are gone, and of
    test photos that were trained on."""
    return {
        digest: split
        for digest, split in known.items()
        if digest not in now or (now[digest] == "test" and split != "test")
    }


def _explain_size(wanted: int | None, start: Start | None, cached: CachedPhotos) -> str:
    if wanted is not None:
        return "requested with `image_size`"
    if start is not None:
        return "from the weights that it starts from"
    width, height = np.median(cached.sizes, axis=0).round().astype(int)
    about = f"since photos are about {width:,} x {height:,}"
    if min(width, height) > 1.5 * cached.size:
        return f"{about}; set `image_size` for larger ones"
    is_enlarged = max(width, height) < cached.size
    return f"{about}, enlarged" if is_enlarged else about


def _refuse_lost_classes(folder: PhotoFolder, cached: CachedPhotos, data: Path) -> None:
    """Raise InputError if none of the photos of a class can be read: the class must not vanish
    silently."""
    lost = set(folder.classes) - {photo.label for photo in cached.photos}
    if not lost:
        return
    name = min(lost)
    [first, *_] = [fault for fault in cached.faults if fault.label == name]
    raise InputError(
        f'none of the photos of the class "{name}" can be used (the first, "{first.name}": '
        f'{first.reason}). Add other photos to its folder, or remove the folder from "{data}".'
    )
