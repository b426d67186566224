"""`compute_features`: the features of every photo, computed once. A kill loses at most the last
batch, and the same call resumes with the same bits."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32

from clew.cores import count_cores
from clew.cpu import fast_convolutions
from clew.errors import InputError, TrainingStoppedError
from clew.loading.buffers import BufferPool
from clew.patterns.cache import CachedPhotos, ImageSamples
from clew.patterns.features.frozen import FORMS, FrozenLite0, choose_form
from clew.patterns.features.store import FeatureStore, Key, build_rows, find_form
from clew.patterns.features.views import make_view
from clew.patterns.networks.pretrained import LITE0_DIGEST, load_lite0
from clew.progress import Reporter, WorkAdvanced, WorkStarted, log_event, report_work
from clew.threads import map_in_threads
from clew.wording import counted

_SIZES = range(32, 513)
_MOST_VIEWS = 64
# Small batches stay in the processor's caches; a GPU wants large ones.
_AT_ONCE, _AT_ONCE_ON_GPU = 8, 64


@dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """`size` is the side in pixels of the images that the network sees (None: that of the cached
    photos), `views` the number of augmented views of every photo besides itself, and `flip` whether
    these may be mirrored."""

    size: int | None = None
    views: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if self.size is not None and self.size not in _SIZES:
            raise InputError(
                f"it must be from {_SIZES[0]} to {_SIZES[-1]} pixels.",
                setting="size",
                value=self.size,
            )
        if not 0 <= self.views <= _MOST_VIEWS:
            raise InputError(
                f"it must be from 0 to {_MOST_VIEWS}.", setting="views", value=self.views
            )


@dataclass(frozen=True, kw_only=True)
class PhotoFeatures:
    """The features of photos, in their order: `embedding` is the mean of the last feature map,
    `stages` are those of the maps before it (24, 40, 112 and 320 channels). The same of augmented
    views."""

    embedding: Float32[np.ndarray, "photos 1280"]
    stages: Float32[np.ndarray, "photos 496"]
    view_embedding: Float32[np.ndarray, "photos views 1280"]
    view_stages: Float32[np.ndarray, "photos views 496"]

    def __len__(self) -> int:
        return len(self.embedding)


def compute_features(
    cached: CachedPhotos,
    folder: Path,
    *,
    settings: FeatureSettings | None = None,
    device: str | torch.device = "cpu",
    threads: int | None = None,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> PhotoFeatures:
    """Computes the features of the photos in `cached` that `folder` does not hold yet, and returns
    those of all, in the order of `cached.photos`.

    Every size, and every version of the weights, has its own store in `folder`. Raises InputError
    if the weights cannot be downloaded, DiskFullError, StoreLockedError, StoreError, and
    TrainingStoppedError when `should_stop` returns true.
    """
    settings = settings or FeatureSettings()
    size = settings.size or cached.size
    mirrored = "-flip" if settings.flip and settings.views else ""
    path = folder / f"lite0-{LITE0_DIGEST[:8]}-{size}px{mirrored}"
    keys = [(digest, view) for view in range(settings.views + 1) for digest in cached.digests]
    form = find_form(path)
    store = _open_store(path, form or "products", size, mirrored)
    if form is None or not store.is_whole() or set(keys) - set(store.keys()):
        network = load_lite0(classes=1)
        chosen = form if form in FORMS else choose_form(torch.device(device))
        store = _open_store(path, chosen, size, mirrored)
        frozen = FrozenLite0(network, chosen, device)
        filling = _Filling(store, cached, frozen, settings, size, reporter or log_event)
        with store.locked(), fast_convolutions(), _threads_as_before():
            filling.run(keys, threads or count_cores(), should_stop)
    embedding, stages = store.read(keys)
    return _split(embedding, stages, len(cached.photos))


def _open_store(path: Path, form: str, size: int, mirrored: str) -> FeatureStore:
    return FeatureStore(path, size=size, flip=bool(mirrored), form=form)  # type: ignore[arg-type]


@contextmanager
def _threads_as_before() -> Iterator[None]:
    """Threads that are started later compute with as many threads as before."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _split(embedding: np.ndarray, stages: np.ndarray, photos: int) -> PhotoFeatures:
    by_view = [values.reshape(-1, photos, values.shape[1]) for values in (embedding, stages)]
    return PhotoFeatures(
        embedding=by_view[0][0],
        stages=by_view[1][0],
        view_embedding=by_view[0][1:].swapaxes(0, 1),
        view_stages=by_view[1][1:].swapaxes(0, 1),
    )


class _Filling:
    """Adds the missing rows to the store; the caller must hold its lock."""

    def __init__(
        self,
        store: FeatureStore,
        cached: CachedPhotos,
        frozen: FrozenLite0,
        settings: FeatureSettings,
        size: int,
        reporter: Reporter,
    ) -> None:
        self._store, self._frozen, self._size = store, frozen, size
        self._flip, self._reporter = settings.flip, reporter
        labels = np.zeros(len(cached.photos), np.int64)
        self._images = ImageSamples(cached.store, cached.rows, labels, place="disk")
        self._places = {digest: place for place, digest in enumerate(cached.digests)}
        self._at_once = _AT_ONCE if frozen.device.type == "cpu" else _AT_ONCE_ON_GPU

    def run(self, keys: Sequence[Key], threads: int, should_stop: Callable[[], bool]) -> None:
        self._store.heal()
        there = self._store.keys()
        known = set(there)
        missing = [key for key in keys if key not in known]
        if not missing:
            return
        planned = len(keys)
        started = WorkStarted(
            noun="features",
            planned=planned,
            done=planned - len(missing),
            estimate=f"{counted(len(missing), 'image')} of {self._size} pixels to look at",
        )
        with report_work(self._reporter, started):
            self._write(missing, len(there), threads, should_stop)

    def _write(
        self, missing: Sequence[Key], first_id: int, threads: int, should_stop: Callable[[], bool]
    ) -> None:
        writer, done = self._store.add_rows(), 0
        try:
            for keys, values in self._compute(missing, threads):
                written = writer.write(build_rows(keys, first_id + done, *values))
                done += len(keys)
                self._reporter(WorkAdvanced(count=len(keys), written_bytes=written))
                if should_stop() and done < len(missing):
                    raise TrainingStoppedError(
                        f"stopped while computing features: {done:,} of {len(missing):,} were "
                        "computed and saved."
                    )
            writer.finish()
        except BaseException:
            writer.abandon()
            raise

    def _compute(
        self, keys: Sequence[Key], threads: int
    ) -> Iterator[tuple[Sequence[Key], tuple[np.ndarray, np.ndarray]]]:
        on_cpu = self._frozen.device.type == "cpu"
        workers = threads if on_cpu else 1
        firsts = range(0, len(keys), self._at_once)
        batches = [keys[first : first + self._at_once] for first in firsts]
        found = map_in_threads(
            partial(self._look_at, alone=on_cpu), batches, workers, ahead=workers
        )
        yield from zip(batches, found, strict=True)

    def _look_at(self, keys: Sequence[Key], *, alone: bool) -> tuple[np.ndarray, np.ndarray]:
        """The features of one batch, computed by one thread: several batches at a time are faster
        than several threads for each, and the number of threads changes no bit."""
        if alone:
            torch.set_num_threads(1)  # of this thread
        images = self._read(keys)
        pooled = [values.cpu().numpy() for values in self._frozen.pooled(images)]
        count = len(keys)
        return pooled[-1][:count], np.concatenate(pooled[:-1], axis=1)[:count]

    def _read(self, keys: Sequence[Key]) -> torch.Tensor:
        """The images of a batch. It always has the same shape, so that a photo's features do not
        depend on how many others there are."""
        places = np.array([self._places[digest] for digest, _ in keys], np.int64)
        images = self._images.read_batch(places, BufferPool())["image"]
        batch = torch.zeros(self._at_once, self._size, self._size, 3, dtype=torch.uint8)
        for row, (digest, view) in enumerate(keys):
            batch[row] = make_view(images[row], digest, view, size=self._size, flip=self._flip)
        return batch
