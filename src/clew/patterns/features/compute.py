"""`compute_features`: the features of every photo, from the pretrained network, computed once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from clew.base.cores import count_cores
from clew.base.errors import InputError
from clew.base.progress import Reporter, log_event
from clew.patterns.augment import AugmentConfig
from clew.patterns.cache import CachedPhotos
from clew.patterns.features.filling import Filling, PhotoSource
from clew.patterns.features.frozen import Form, FrozenLite0, choose_form
from clew.patterns.features.store import FeatureStore, find_form
from clew.patterns.features.views import Views
from clew.patterns.networks.lite0 import FEATURES, STAGE_CHANNELS
from clew.patterns.networks.pretrained import LITE0_DIGEST, load_lite0

_SIZES = range(32, 513)
_MOST_VIEWS, _CROP = 64, 0.35
_STAGES = sum(STAGE_CHANNELS[:-1])
_FLOAT = np.dtype(np.float32)
# Changes when features are computed differently: old ones would not match new ones.
_METHOD = "pooled stages, views 2"


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

    Every size, and every version of the weights, has its own store in `folder`. The same call
    resumes after a kill, and ends with the same bits. Raises InputError if the weights cannot be
    downloaded, DiskFullError, StoreLockedError, StoreError, and TrainingStoppedError when
    `should_stop` returns true.
    """
    settings = settings or FeatureSettings()
    source = PhotoSource(
        cached=cached,
        size=settings.size or cached.size,
        views=Views(AugmentConfig(crop=_CROP, flip=settings.flip and settings.views > 0)),
    )
    path = folder / f"lite0-{LITE0_DIGEST[:8]}-{source.size}px-{source.views.digest}"
    keys = [(digest, view) for view in range(settings.views + 1) for digest in cached.digests]
    store = _open_store(path, find_form(path), source)
    if not store.is_whole() or set(keys) - set(store.keys()):
        form = find_form(path) or choose_form(torch.device(device))
        store = _open_store(path, form, source)
        look = _Pooled(FrozenLite0(load_lite0(classes=1), form, device))
        Filling(
            store,
            source,
            look,
            device=device,
            threads=threads or count_cores(),
            reporter=reporter or log_event,
        ).run(keys, should_stop)
    return _split(*store.read(keys), photos=len(cached.photos))


class _Pooled:
    """What is kept of a batch of images."""

    def __init__(self, network: FrozenLite0) -> None:
        self._network = network

    def __call__(self, images: Tensor) -> Sequence[Tensor]:
        pooled = self._network.pooled(images)
        return pooled[-1], torch.cat(pooled[:-1], dim=1)


def _open_store(path: Path, form: Form | None, source: PhotoSource) -> FeatureStore:
    return FeatureStore(
        path,
        kind="features",
        columns={"embedding": (FEATURES, _FLOAT), "stages": (_STAGES, _FLOAT)},
        identity={
            "size": source.size,
            "views": source.views.describe(),
            "form": form,
            "weights": LITE0_DIGEST,
            "method": _METHOD,
        },
        cache_dir=source.cached.cache_dir,
    )


def _split(embedding: np.ndarray, stages: np.ndarray, *, photos: int) -> PhotoFeatures:
    by_view = [values.reshape(-1, photos, values.shape[1]) for values in (embedding, stages)]
    return PhotoFeatures(
        embedding=by_view[0][0],
        stages=by_view[1][0],
        view_embedding=by_view[0][1:].swapaxes(0, 1),
        view_stages=by_view[1][1:].swapaxes(0, 1),
    )
