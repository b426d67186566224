"""What the network makes of every photo, computed once and kept in stores: features of the
pretrained network, and the maps that its last blocks are trained on."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float16, Float32
from torch import Tensor

from clew.base.cores import count_cores
from clew.base.cpu import fast_convolutions, time_on_core
from clew.base.progress import Reporter, log_event
from clew.patterns.augment import AugmentConfig
from clew.patterns.cache.build import CachedPhotos
from clew.patterns.features.store import (
    FORMS,
    FeatureStore,
    Form,
    Key,
    Look,
    PhotoSource,
    Views,
    fill_store,
    find_form,
)
from clew.patterns.networks.classifier import normalize
from clew.patterns.networks.lite0 import (
    FEATURES,
    FIRST_TUNED,
    LITE0_DIGEST,
    STAGE_CHANNELS,
    TUNED_CHANNELS,
    EfficientNetLite0,
    freeze,
    load_lite0,
)

# Part of the name of a store, since earlier versions could add views to it.
_NO_VIEWS = Views(AugmentConfig(crop=0.35, flip=False))
_STAGES = sum(STAGE_CHANNELS[:-1])
_FLOAT = np.dtype(np.float32)
# Change when features are computed differently: old ones would not match new ones.
_METHOD, _MAPS_METHOD = "pooled stages, views 2", "views 2"
_STRIDE = 32
_TIMED_SIDE, _TIMED_IMAGES = 160, 2
_HASH_LETTERS = 16


@dataclass(frozen=True, kw_only=True)
class PhotoFeatures:
    """The features of photos, in their order: `embedding` is the mean of the last feature map,
    `stages` are those of the maps before it (24, 40, 112 and 320 channels)."""

    embedding: Float32[np.ndarray, "photos 1280"]
    stages: Float32[np.ndarray, "photos 496"]

    def __len__(self) -> int:
        return len(self.embedding)


def compute_features(
    cached: CachedPhotos,
    folder: Path,
    *,
    size: int | None = None,
    device: str | torch.device = "cpu",
    threads: int | None = None,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> PhotoFeatures:
    """Computes the features of the photos in `cached` that `folder` does not hold yet, and returns
    those of all, in the order of `cached.photos`. `size` is the side in pixels of the images that
    the network sees [default: that of the cached photos].

    Every size, and every version of the weights, has its own store in `folder`. The same call
    resumes after a kill, and ends with the same bits. Raises InputError if the weights cannot be
    downloaded, DiskFullError, StoreLockedError, StoreError, and TrainingStoppedError when
    `should_stop` returns true.
    """
    embedding, stages = _compute_rows(
        [(digest, 0) for digest in cached.digests],
        PhotoSource(cached=cached, size=size or cached.size, views=_NO_VIEWS),
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
    return PhotoFeatures(embedding=embedding, stages=stages)


def _pool(device: str | torch.device, form: Form) -> Look:
    return pooled_stages(load_lite0(classes=1), form, device)


def pooled_stages(
    network: EfficientNetLite0, form: Form, device: str | torch.device = "cpu"
) -> Look:
    """The mean of the last feature map of images, and those of the stages before it."""
    frozen = freeze(network, products=form == "products", device=device)

    @torch.inference_mode()
    def look(images: Tensor) -> Sequence[Tensor]:
        maps = frozen.stages(_as_input(frozen, images.to(device)))
        # Rows of pixels lie in memory as they are added up; a mean over both sides is slower.
        pooled = [one.permute(0, 2, 3, 1).flatten(1, 2).mean(1) for one in maps]
        return pooled[-1], torch.cat(pooled[:-1], dim=1)

    return look


def frozen_maps(network: EfficientNetLite0, form: Form) -> Look:
    """What the blocks take that are trained on maps, pixel by pixel, in 16 bits."""
    frozen = freeze(network, products=form == "products")

    @torch.inference_mode()
    def look(images: Tensor) -> Sequence[Tensor]:
        maps = frozen.maps_to_tune(_as_input(frozen, images))
        return [maps.permute(0, 2, 3, 1).flatten(1).half()]

    return look


def _as_input(network: EfficientNetLite0, images: Tensor) -> Tensor:
    return normalize(images, network).contiguous(memory_format=torch.channels_last)


def choose_form(device: torch.device) -> Form:
    """The faster form on this machine, by timing both."""
    return _fastest_on_cpu() if device.type == "cpu" else "convolutions"


@lru_cache(maxsize=1)
def _fastest_on_cpu() -> Form:
    network = EfficientNetLite0(classes=1)
    images = torch.zeros(_TIMED_IMAGES, _TIMED_SIDE, _TIMED_SIDE, 3, dtype=torch.uint8)
    with fast_convolutions():
        seconds = {
            form: time_on_core(partial(pooled_stages(network, form), images)) for form in FORMS
        }
    return min(FORMS, key=lambda form: seconds[form])


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
    [found] = _compute_rows(
        keys,
        source,
        folder / f"maps-{digest[:8]}",
        partial(frozen_maps, network),
        kind="feature maps",
        columns={"map": (TUNED_CHANNELS * side**2, np.dtype(np.float16))},
        weights=digest,
        method=_MAPS_METHOD,
        device="cpu",
        threads=threads,
        reporter=reporter,
        should_stop=should_stop,
    )
    return torch.from_numpy(found).unflatten(1, (side, side, TUNED_CHANNELS))


def map_bytes(size: int) -> int:
    """The size of the map of one image."""
    return 2 * TUNED_CHANNELS * (-(-size // _STRIDE)) ** 2


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
        store = open_store(form)
        fill_store(
            store,
            source,
            make_look(form),
            keys,
            device=device,
            threads=threads,
            reporter=reporter,
            should_stop=should_stop,
        )
    return store.read(keys)


def _hash_first_blocks(network: EfficientNetLite0) -> str:
    first = [f"_blocks.{place}." for place in range(FIRST_TUNED)]
    found = hashlib.blake2b()
    for name, value in network.state_dict().items():
        if name.startswith(("_conv_stem", "_bn0", *first)) and value.is_floating_point():
            found.update(np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return found.hexdigest()[:_HASH_LETTERS]
