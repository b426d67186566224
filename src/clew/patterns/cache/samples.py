"""Batches of decoded photos, from memory, from disk, or gathered on the GPU, and which of these
suits the machine."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from clew.base.errors import InputError, StoreError
from clew.base.texts import bytes_text
from clew.base.urls import as_path
from clew.engine import LoadSettings
from clew.engine.plan import Machine, look_at_machine
from clew.loading.buffers import BufferPool
from clew.loading.loader import Loader
from clew.loading.order import Rank
from clew.loading.reader import Rows, SampleReader
from clew.patterns.cache.build import CachedPhotos
from clew.patterns.cache.store import CHANNELS, KIND

Place = Literal["ram", "disk", "gpu"]

# Fractions of memory that images may take: the rest of the GPU's is for the network, the rest of
# the machine's for other programs.
_GPU_SHARE, _RAM_SHARE, _WANTED_RAM_SHARE = 0.3, 0.5, 0.8
_COLUMN = "image"
_OPEN_FILES = 256
_READ_AT_ONCE_BYTES = 8 << 20
_PHOTOS_AT_ONCE = 256
# Of fewer batches, the last one is too large a share of an epoch to be dropped.
_FEWEST_BATCHES = 8

Images = UInt8[Tensor, "batch size size 3"]


class PlaceChoice(NamedTuple):
    place: Place
    reason: str


def choose_place(
    bytes_needed: int,
    *,
    wanted: str = "auto",
    device: str | torch.device = "cpu",
    machine: Machine | None = None,
    processes: int = 1,
) -> PlaceChoice:
    """Choose where to keep the images of all splits: GPU, RAM or disk. Images that do not fit are
    never loaded into memory, even on request. Each of several processes on a machine has its own
    copy."""
    if wanted not in ("auto", "ram", "disk"):
        raise InputError("choose from: auto, ram, disk.", setting="cache", value=wanted)
    if wanted == "disk":
        return PlaceChoice("disk", 'requested with `cache="disk"`')
    machine, device = machine or look_at_machine(), torch.device(device)
    size = bytes_text(bytes_needed)
    if wanted == "auto" and device.type == "cuda":
        free = machine.gpu(str(device)).free_bytes
        if bytes_needed <= _GPU_SHARE * free:
            return PlaceChoice("gpu", f"{size} of images, {bytes_text(free)} free on the GPU")
    free = machine.free_memory_bytes // processes
    share = _RAM_SHARE if wanted == "auto" else _WANTED_RAM_SHARE
    have = f"{size} of images, {bytes_text(free)} of free memory"
    if bytes_needed <= share * free:
        return PlaceChoice("ram", have if wanted == "auto" else f"as requested; {have}")
    too_much = f"{have}; the images may use at most {share:.0%} of it"
    return PlaceChoice(
        "disk", too_much if wanted == "auto" else f'`cache="ram"` does not fit: {too_much}'
    )


class ImageSamples:
    """Images of the chosen rows of a store, each with its class, for clew's Loader.

    A batch is a dict: `image` uint8 `[batch, size, size, 3]`, `label` int64 `[batch]`, `index`
    int64 `[batch]` (the sample's index here). In RAM and on the GPU all images are read once, on
    creation; from disk each batch is read on demand, and memory stays flat.
    """

    def __init__(
        self,
        store: str | Path,
        rows: Int64[np.ndarray, " samples"],
        labels: Int64[np.ndarray, " samples"],
        *,
        place: Place,
        device: str | torch.device | None = None,
    ) -> None:
        if len(rows) != len(labels):
            raise InputError(
                f"{len(rows):,} rows, but {len(labels):,} labels: pass one label per row."
            )
        self.place = place
        self.rows = np.ascontiguousarray(rows, np.int64)
        self.labels = torch.from_numpy(np.array(labels, np.int64))
        self._reader = _open_reader(as_path(store))
        self.size = int(self._reader.manifest.setting("size"))
        self._shape = (self.size, self.size, CHANNELS)
        self._images: Images | None = None
        if place == "disk":
            self._open_files()
        else:
            on = torch.device("cpu" if place == "ram" else device or "cuda")
            self._images, self.labels = self._read_all(on), self.labels.to(on)

    def __len__(self) -> int:
        return len(self.rows)

    def read_batch(self, indices: Rows, buffers: BufferPool) -> dict[str, Any]:
        places = torch.from_numpy(np.ascontiguousarray(indices, np.int64))
        chosen = places.to(self.labels.device, non_blocking=True)
        return {
            "image": self._read(places, chosen, buffers),
            "label": self.labels.index_select(0, chosen),
            "index": places,
        }

    def read(self, places: Int64[np.ndarray, " photos"]) -> Images:
        """Only the images."""
        return self.read_batch(places, BufferPool())["image"]

    def _read(self, places: Tensor, chosen: Tensor, buffers: BufferPool) -> Images:
        """`chosen` are the same indices on the device of the labels."""
        if self.place == "gpu" and self._images is not None:
            return self._images.index_select(0, chosen)
        out = buffers.take((len(places), *self._shape), np.dtype(np.uint8))
        if self._images is None:
            self._copy(places.numpy(), out)
        else:  # "clip" avoids a second copy: indices are known to be in range.
            np.take(self._images.numpy(), places.numpy(), axis=0, out=out.numpy(), mode="clip")
        return out

    def _open_files(self) -> None:
        """Opens every file that is needed: adding photos to the cache replaces a file with a longer
        one, while the old one stays readable here."""
        row = torch.empty((1, *self._shape), dtype=torch.uint8)
        _, firsts = np.unique(self._reader.shards_of(self.rows), return_index=True)
        for place in firsts:
            self._copy(place[None], row)

    def _copy(self, places: Rows, out: Images) -> None:
        """From disk, piece by piece, so that no page of the store stays in memory."""
        if len(places):
            flat = out.numpy().reshape(len(places), -1)
            self._reader.copy_rows(_COLUMN, self.rows[places], flat)

    def _read_all(self, device: torch.device) -> Images:
        """All images in one array on the device, read as many at a time as a small buffer holds."""
        images = torch.empty((len(self.rows), *self._shape), dtype=torch.uint8, device=device)
        buffers = BufferPool(pinned=device.type == "cuda")
        at_once = max(1, _READ_AT_ONCE_BYTES // math.prod(self._shape))
        for first in range(0, len(self.rows), at_once):
            part = images[first : first + at_once]
            read = part
            if device.type != "cpu":
                read = buffers.take(tuple(part.shape), np.dtype(np.uint8))
            self._copy(np.arange(first, first + len(part)), read)
            if read is not part:
                part.copy_(read, non_blocking=True)
        return images


class _Subset:
    """Some of the samples; the `index` of a batch counts all of them."""

    def __init__(self, samples: ImageSamples, places: Int64[np.ndarray, " some"]) -> None:
        self._samples, self._places = samples, places

    def __len__(self) -> int:
        return len(self._places)

    def read_batch(self, indices: Rows, buffers: BufferPool) -> dict[str, Any]:
        return self._samples.read_batch(self._places[indices], buffers)


def open_images(
    settings: LoadSettings,
    samples: ImageSamples,
    places: Int64[np.ndarray, " some"] | None = None,
    rank: Rank | None = None,
    *,
    drop_last: bool = False,
) -> Loader:
    """Open batches of the samples at `places`, or of all; the engine calls it through `partial`. On
    the GPU there is nothing to read ahead. `drop_last` is heeded if few photos wait for
    the next epoch then."""
    is_read = samples.place != "gpu"
    some = samples if places is None else _Subset(samples, places)
    return Loader(
        some,
        settings.batch_size,
        shuffle=settings.shuffle,
        seed=settings.seed,
        num_workers=settings.num_workers if is_read else 0,
        prefetch_factor=settings.prefetch_factor,
        persistent_workers=settings.persistent_workers and is_read,
        pin_memory=settings.pin_memory and is_read,
        drop_last=drop_last and len(some) >= _FEWEST_BATCHES * settings.batch_size,
        rank=rank,
    )


def read_images(
    cached: CachedPhotos, places: Sequence[int] | None = None
) -> Iterator[UInt8[np.ndarray, "photos size size 3"]]:
    """The decoded photos, a few at a time."""
    rows = cached.rows if places is None else cached.rows[list(places)]
    samples = ImageSamples(cached.open_store(), rows, np.zeros(len(rows), np.int64), place="disk")
    for first in range(0, len(rows), _PHOTOS_AT_ONCE):
        chosen = np.arange(first, min(first + _PHOTOS_AT_ONCE, len(rows)))
        yield samples.read_batch(chosen, BufferPool())["image"].numpy()


def _open_reader(store: Path) -> SampleReader:
    open_reader = partial(SampleReader, columns=(_COLUMN,), max_open=_OPEN_FILES)
    reader = open_reader(store, access="read")
    if reader.exceeds_cache:
        reader = open_reader(reader.path, access="ranges")
    if reader.manifest.kind != KIND:
        raise StoreError(f'"{store}" contains {reader.manifest.kind}, not {KIND}: check the path.')
    return reader
