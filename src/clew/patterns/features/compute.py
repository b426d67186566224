"""What the network makes of every photo, computed once and kept in stores: features of the
pretrained network, and the maps that its last blocks are trained on."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float16, Float32
from torch import Tensor

from clew.base.cores import count_cores
from clew.base.errors import InputError
from clew.base.progress import Reporter, log_event
from clew.patterns.augment import AugmentConfig
from clew.patterns.cache.build import CachedPhotos
from clew.patterns.features.frozen import FIRST_BLOCK, Form, FrozenLite0, choose_form
from clew.patterns.features.store import (
    FeatureStore,
    Filling,
    Key,
    Look,
    PhotoSource,
    Views,
    find_form,
)
from clew.patterns.networks.lite0 import (
    FEATURES,
    LITE0_DIGEST,
    STAGE_CHANNELS,
    EfficientNetLite0,
    load_lite0,
)

_SIZES = range(32, 513)
_MOST_VIEWS, _CROP = 64, 0.35
_STAGES = sum(STAGE_CHANNELS[:-1])
_FLOAT = np.dtype(np.float32)
# Change when features are computed differently: old ones would not match new ones.
_METHOD, _MAPS_METHOD = "pooled stages, views 2", "views 2"
_CHANNELS, _STRIDE = 192, 32
_HASH_LETTERS = 16


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
    keys = [(digest, view) for view in range(settings.views + 1) for digest in cached.digests]
    rows = _compute_rows(
        keys,
        source,
        folder / f"lite0-{LITE0_DIGEST[:8]}",
        partial(_pool, device),
        kind="features",
        columns={"embedding": (FEATURES, _FLOAT), "stages": (_STAGES, _FLOAT)},
        weights=LITE0_DIGEST,
        method=_METHOD,
        device=device,
        threads=threads or count_cores(),
        reporter=reporter or log_event,
        should_stop=should_stop,
    )
    by_view = [values.reshape(-1, len(cached.photos), values.shape[1]) for values in rows]
    return PhotoFeatures(
        embedding=by_view[0][0],
        stages=by_view[1][0],
        view_embedding=by_view[0][1:].swapaxes(0, 1),
        view_stages=by_view[1][1:].swapaxes(0, 1),
    )


def _pool(device: str | torch.device, form: Form) -> Look:
    network = FrozenLite0(load_lite0(classes=1), form, device)

    def look(images: Tensor) -> Sequence[Tensor]:
        pooled = network.pooled(images)
        return pooled[-1], torch.cat(pooled[:-1], dim=1)

    return look


def compute_maps(
    network: EfficientNetLite0,
    source: PhotoSource,
    folder: Path,
    keys: Sequence[Key],
    *,
    threads: int,
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> Float16[Tensor, "keys rows columns 192"]:
    """The maps that the network makes of these photos and views before its last blocks, in 16 bits.
    They are the same for every network with the same first blocks."""
    digest, side = _hash_first_blocks(network), -(-source.size // _STRIDE)

    def make_look(form: Form) -> Look:
        frozen = FrozenLite0(network, form)
        return lambda images: [frozen.maps_before(images, FIRST_BLOCK).flatten(1).half()]

    [found] = _compute_rows(
        keys,
        source,
        folder / f"maps-{digest[:8]}",
        make_look,
        kind="feature maps",
        columns={"map": (_CHANNELS * side**2, np.dtype(np.float16))},
        weights=digest,
        method=_MAPS_METHOD,
        device="cpu",
        threads=threads,
        reporter=reporter,
        should_stop=should_stop,
    )
    return torch.from_numpy(found).unflatten(1, (side, side, _CHANNELS))


def map_bytes(size: int) -> int:
    """The size of the map of one image."""
    return 2 * _CHANNELS * (-(-size // _STRIDE)) ** 2


def _compute_rows(
    keys: Sequence[Key],
    source: PhotoSource,
    prefix: Path,
    make_look: Callable[[Form], Look],
    *,
    kind: str,
    columns: Mapping[str, tuple[int, np.dtype[Any]]],
    weights: str,
    method: str,
    device: str | torch.device,
    threads: int,
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> list[np.ndarray]:
    """The columns of these rows; those that are not in the store are computed. The form is that of
    the rows that are there, or else the fastest."""
    path = prefix.with_name(f"{prefix.name}-{source.size}px-{source.views.digest}")

    def open_store(form: Form | None) -> FeatureStore:
        about = {"size": source.size, "views": source.views.describe(), "form": form}
        return FeatureStore(
            path,
            kind=kind,
            columns=columns,
            identity={**about, "weights": weights, "method": method},
            cache_dir=source.cached.cache_dir,
        )

    store = open_store(find_form(path))
    if not store.is_whole() or set(keys) - set(store.keys()):
        form = find_form(path) or choose_form(torch.device(device))
        store, look = open_store(form), make_look(form)
        filling = Filling(store, source, look, device=device, threads=threads, reporter=reporter)
        filling.run(keys, should_stop)
    return store.read(keys)


def _hash_first_blocks(network: EfficientNetLite0) -> str:
    first = [f"_blocks.{place}." for place in range(FIRST_BLOCK)]
    found = hashlib.blake2b()
    for name, value in network.state_dict().items():
        if name.startswith(("_conv_stem", "_bn0", *first)) and value.is_floating_point():
            found.update(np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return found.hexdigest()[:_HASH_LETTERS]
