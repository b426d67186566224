"""The feature maps that the last blocks are trained on, computed once and cached in 16 bits."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float16
from torch import Tensor

from clew.base.progress import Reporter
from clew.patterns.features.filling import Filling, PhotoSource
from clew.patterns.features.frozen import Form, FrozenLite0, choose_form
from clew.patterns.features.last_blocks import FIRST_BLOCK
from clew.patterns.features.store import FeatureStore, find_form
from clew.patterns.features.views import Key
from clew.patterns.networks.lite0 import EfficientNetLite0

CHANNELS, STRIDE = 192, 32
_METHOD = "views 2"
_HASH_LETTERS = 16


def map_bytes(size: int) -> int:
    """The size of the map of one image."""
    return 2 * CHANNELS * (-(-size // STRIDE)) ** 2


class FeatureMaps:
    """The maps of photos that the network makes before its last blocks. They are the same for every
    network with the same first blocks."""

    def __init__(
        self,
        network: EfficientNetLite0,
        source: PhotoSource,
        folder: Path,
        *,
        threads: int,
        reporter: Reporter,
        should_stop: Callable[[], bool],
    ) -> None:
        self._network, self._source, self._threads = network, source, threads
        self._reporter, self._should_stop = reporter, should_stop
        self._digest = _hash_first_blocks(network)
        self._path = folder / f"maps-{self._digest[:8]}-{source.size}px-{source.views.digest}"
        self._side = -(-source.size // STRIDE)

    def compute(self, keys: Sequence[Key]) -> Float16[Tensor, "keys rows columns 192"]:
        """The maps of these photos and views; those that are not in the cache are computed."""
        store = self._open(find_form(self._path))
        if not store.is_whole() or set(keys) - set(store.keys()):
            form = find_form(self._path) or choose_form(torch.device("cpu"))
            store, frozen = self._open(form), FrozenLite0(self._network, form)
            Filling(
                store,
                self._source,
                lambda images: [frozen.maps_before(images, FIRST_BLOCK).flatten(1).half()],
                device="cpu",
                threads=self._threads,
                reporter=self._reporter,
            ).run(keys, self._should_stop)
        [found] = store.read(keys)
        return torch.from_numpy(found).unflatten(1, (self._side, self._side, CHANNELS))

    def _open(self, form: Form | None) -> FeatureStore:
        width = CHANNELS * self._side**2
        return FeatureStore(
            self._path,
            kind="feature maps",
            columns={"map": (width, np.dtype(np.float16))},
            identity={
                "size": self._source.size,
                "views": self._source.views.describe(),
                "form": form,
                "weights": self._digest,
                "method": _METHOD,
            },
            cache_dir=self._source.cached.cache_dir,
        )


def _hash_first_blocks(network: EfficientNetLite0) -> str:
    first = [f"_blocks.{place}." for place in range(FIRST_BLOCK)]
    found = hashlib.blake2b()
    for name, value in network.state_dict().items():
        if name.startswith(("_conv_stem", "_bn0", *first)) and value.is_floating_point():
            found.update(np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return found.hexdigest()[:_HASH_LETTERS]
