"""Fills a store with what the network makes of photos: batches in threads, written in order. A kill
loses at most the last batches, and the same call resumes with the same bits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from clew.base.cores import map_in_threads
from clew.base.cpu import fast_convolutions, map_on_cores
from clew.base.errors import TrainingStoppedError
from clew.base.progress import Reporter, WorkAdvanced, WorkStarted, report_work
from clew.base.texts import counted
from clew.loading.buffers import BufferPool
from clew.patterns.cache import CachedPhotos, ImageSamples
from clew.patterns.features.store import FeatureStore
from clew.patterns.features.views import Key, Views, resize

# Small batches stay in the processor's caches; a GPU wants large ones.
_AT_ONCE, _AT_ONCE_ON_GPU = 8, 64

Look = Callable[[UInt8[Tensor, "batch side side 3"]], Sequence[Tensor]]


@dataclass(frozen=True, kw_only=True)
class PhotoSource:
    """The photos, as the network sees them: squares of `size` pixels, and their views."""

    cached: CachedPhotos
    size: int
    views: Views


class Filling:
    """Adds missing rows to a store. `look` gives the arrays of a batch of images, one row each."""

    def __init__(
        self,
        store: FeatureStore,
        source: PhotoSource,
        look: Look,
        *,
        device: str | torch.device,
        threads: int,
        reporter: Reporter,
    ) -> None:
        self._store, self._source, self._look, self._reporter = store, source, look, reporter
        self._on_cpu = torch.device(device).type == "cpu"
        self._threads = threads
        self._at_once = _AT_ONCE if self._on_cpu else _AT_ONCE_ON_GPU
        cached = source.cached
        labels = np.zeros(len(cached.photos), np.int64)
        self._images = ImageSamples(cached.open_store(), cached.rows, labels, place="disk")
        self._places = {digest: place for place, digest in enumerate(cached.digests)}

    def run(self, keys: Sequence[Key], should_stop: Callable[[], bool]) -> None:
        """Raises TrainingStoppedError when `should_stop` returns true, and whatever writing a store
        raises."""
        with self._store.locked(), fast_convolutions():
            self._store.heal()
            there = self._store.keys()
            known = set(there)
            missing = [key for key in keys if key not in known]
            if missing:
                with report_work(self._reporter, self._start(len(keys), len(missing))):
                    self._write(missing, len(there), should_stop)

    def _start(self, planned: int, missing: int) -> WorkStarted:
        images, size = counted(missing, "image"), self._source.size
        return WorkStarted(
            noun="features",
            planned=planned,
            done=planned - missing,
            estimate=f"{images} of {size} x {size} pixels to compute features of",
        )

    def _write(
        self, missing: Sequence[Key], first_id: int, should_stop: Callable[[], bool]
    ) -> None:
        writer, done = self._store.add_rows(), 0
        try:
            for keys, arrays in self._compute(missing):
                rows = self._store.build_rows(keys, first_id + done, arrays)
                written = writer.write(rows)
                done += len(keys)
                self._reporter(WorkAdvanced(count=len(keys), written_bytes=written))
                if should_stop() and done < len(missing):
                    writer.save()
                    raise TrainingStoppedError(
                        f"stopped while computing features: {done:,} of {len(missing):,} were "
                        "computed and saved."
                    )
            writer.finish()
        except BaseException:
            writer.abandon()
            raise

    def _compute(self, keys: Sequence[Key]) -> Iterator[tuple[Sequence[Key], list[np.ndarray]]]:
        firsts = range(0, len(keys), self._at_once)
        batches = [keys[first : first + self._at_once] for first in firsts]
        if self._on_cpu:
            found = map_on_cores(self._look_at, batches, self._threads)
        else:
            found = map_in_threads(self._look_at, batches, 1, ahead=1)
        yield from zip(batches, found, strict=True)

    def _look_at(self, keys: Sequence[Key]) -> list[np.ndarray]:
        """The rows of one batch."""
        arrays = self._look(self._read(keys))
        return [values[: len(keys)].cpu().numpy() for values in arrays]

    def _read(self, keys: Sequence[Key]) -> UInt8[Tensor, "batch size size 3"]:
        """The images of a batch. It always has the same shape, so that a photo's features do not
        depend on how many others there are."""
        size = self._source.size
        places = np.array([self._places[digest] for digest, _ in keys], np.int64)
        images = self._images.read_batch(places, BufferPool())["image"]
        batch = torch.zeros(self._at_once, size, size, 3, dtype=torch.uint8)
        seen = resize(images, size)
        batch[: len(keys)] = (
            self._source.views.make(seen, keys) if any(view for _, view in keys) else seen
        )
        return batch
