"""Stores of what the network makes of photos and their augmented views: one row each, found again
by the photo's digest, and filled in threads. A kill loses at most the last batches."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from clew.base.cores import map_in_threads
from clew.base.cpu import fast_convolutions, map_on_cores
from clew.base.errors import TrainingStoppedError
from clew.base.progress import Reporter, WorkAdvanced, WorkStarted, report_work
from clew.base.texts import counted
from clew.loading.buffers import BufferPool
from clew.loading.reader import exceeds_cache
from clew.patterns.augment import AugmentConfig, RandAugment
from clew.patterns.augment.operations import apply_changes
from clew.patterns.cache.build import CachedPhotos
from clew.patterns.cache.samples import ImageSamples
from clew.patterns.cache.store import ID, RowStore
from clew.storage.manifest import has_manifest, read_manifest
from clew.storage.reader import StoreReader

_ADVICE = "Free some space and run the same command again."


# "products": a convolution of single pixels is a matrix product. On ARM without SVE that is 1.7
# times as fast as PyTorch's own convolutions in channels_last, which are best elsewhere.
Form = Literal["products", "convolutions"]
FORMS: tuple[Form, ...] = get_args(Form)
# A photo's digest and the number of a view.
Key = tuple[str, int]
# Small batches stay in the processor's caches; a GPU wants large ones.
_AT_ONCE, _AT_ONCE_ON_GPU = 8, 64
Images = UInt8[Tensor, "batch side side 3"]
Look = Callable[[Images], Sequence[Tensor]]


def resize(images: Images, size: int) -> Images:
    """Images of `size` pixels; the same ones if they are already."""
    if images.shape[1] == size:
        return images
    values = images.permute(0, 3, 1, 2).float()
    shrinks = images.shape[1] > size
    found = F.interpolate(values, (size, size), mode="bilinear", antialias=shrinks)
    return found.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


class Views:
    """Makes views. Mixup is not part of them: it needs two photos."""

    def __init__(self, config: AugmentConfig) -> None:
        self._config = replace(config, mixup=0.0)
        self._augment = RandAugment(self._config)

    def describe(self) -> dict[str, Any]:
        return asdict(self._config)

    @property
    def digest(self) -> str:
        """A short name for the settings."""
        return hashlib.blake2b(repr(self._config).encode(), digest_size=4).hexdigest()

    def make(self, images: Images, keys: Sequence[Key]) -> Images:
        """The views of photos; view 0 is the photo itself."""
        numbers = torch.stack([_draw(key, self._augment.numbers) for key in keys])
        changed = apply_changes(images, *self._augment.decide(numbers))
        is_plain = torch.tensor([view == 0 for _, view in keys])
        changed = (255 * changed).round_().clamp_(0, 255).to(torch.uint8)
        return torch.where(is_plain[:, None, None, None], images, changed)


@dataclass(frozen=True, kw_only=True)
class PhotoSource:
    """The photos, as the network sees them: squares of `size` pixels, and their views."""

    cached: CachedPhotos
    size: int
    views: Views


class FeatureStore(RowStore):
    """A store whose rows have these columns: an array of a fixed width each. All rows were computed
    in the same `form`, since forms differ in the last bits."""

    def __init__(
        self,
        path: Path,
        *,
        kind: str,
        columns: Mapping[str, tuple[int, np.dtype[Any]]],
        identity: Mapping[str, Any],
        cache_dir: Path | None = None,
    ) -> None:
        self._columns = dict(columns)
        super().__init__(
            path,
            _schema(columns),
            kind=kind,
            identity=identity,
            row_bytes=sum(width * dtype.itemsize for width, dtype in columns.values()),
            work="computed the features",
            advice=_ADVICE,
            cache_dir=cache_dir,
        )

    def keys(self) -> list[Key]:
        """Digest and view of every row."""
        if not self.exists():
            return []
        reader = self._open()
        return [key for number in range(len(reader.shards)) for key in _read_keys(reader, number)]

    def read(self, keys: Sequence[Key]) -> list[np.ndarray]:
        """The columns of these rows, `[keys, width]` each."""
        places = {key: place for place, key in enumerate(keys)}
        arrays = [np.empty((len(keys), *of[:1]), of[1]) for of in self._columns.values()]
        reader = self._open()
        for number in range(len(reader.shards)):
            found = np.array([places.get(key, -1) for key in _read_keys(reader, number)], np.int64)
            rows = np.flatnonzero(found >= 0)
            for name, out in zip(self._columns, arrays, strict=True):
                out[found[rows]] = _read_values(reader, number, name, out)[rows]
        return arrays

    def build_rows(
        self, keys: Sequence[Key], first_id: int, arrays: Sequence[np.ndarray]
    ) -> pa.RecordBatch:
        columns = [
            pa.array(np.arange(first_id, first_id + len(keys))),
            pa.array([digest for digest, _ in keys], pa.string()),
            pa.array([view for _, view in keys], pa.int32()),
            *(_as_lists(values) for values in arrays),
        ]
        cast = [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(cast, schema=self.schema)

    def _open(self) -> StoreReader:
        self.refuse_other(read_manifest(self.path))
        return self.open_reader()


def find_form(path: Path) -> Form | None:
    """The form that the rows of a store were computed in; None if there is none yet."""
    form = read_manifest(path).settings.get("form") if has_manifest(path) else None
    return form if form in FORMS else None


def _schema(columns: Mapping[str, tuple[int, np.dtype[Any]]]) -> pa.Schema:
    types = {ID: pa.int64(), "digest": pa.string(), "view": pa.int32()}
    for name, (width, dtype) in columns.items():
        types[name] = pa.list_(pa.from_numpy_dtype(dtype), width)
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])


def _as_lists(values: np.ndarray) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _read_keys(reader: StoreReader, number: int) -> list[Key]:
    table = reader.peek(number).read_columns(("digest", "view"))
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _read_values(reader: StoreReader, number: int, name: str, like: np.ndarray) -> np.ndarray:
    is_large = exceeds_cache(reader.path, reader.manifest.bytes)
    shard = reader.peek(number) if is_large else reader.shard(number)
    chunks = shard.read_column(name).chunks
    flat = [chunk.flatten().to_numpy() for chunk in chunks]
    return np.concatenate([np.zeros(0, like.dtype), *flat]).reshape(-1, like.shape[1])


def fill_store(
    store: FeatureStore,
    source: PhotoSource,
    look: Look,
    keys: Sequence[Key],
    *,
    device: str | torch.device,
    threads: int,
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> None:
    """Add missing rows. `look` gives the arrays of a batch of images, one row each. Raises
    TrainingStoppedError when `should_stop` returns true, and whatever writing a store raises."""
    on_cpu = torch.device(device).type == "cpu"
    at_once = _AT_ONCE if on_cpu else _AT_ONCE_ON_GPU
    read = _open_images(source, at_once)

    def compute(batch: Sequence[Key]) -> list[np.ndarray]:
        return [values[: len(batch)].cpu().numpy() for values in look(read(batch))]

    with store.locked(), fast_convolutions():
        store.heal()
        there = store.keys()
        known = set(there)
        missing = [key for key in keys if key not in known]
        if not missing:
            return
        batches = [missing[first : first + at_once] for first in range(0, len(missing), at_once)]
        computed = (
            map_on_cores(compute, batches, threads)
            if on_cpu
            else map_in_threads(compute, batches, 1, ahead=1)
        )
        started = WorkStarted(
            noun="features",
            planned=len(keys),
            done=len(keys) - len(missing),
            estimate=f"{counted(len(missing), 'image')} of {source.size} x {source.size} pixels "
            "to compute features of",
        )
        done = 0
        with report_work(reporter, started), store.adding_rows() as writer:
            for batch, arrays in zip(batches, computed, strict=True):
                written = writer.write(store.build_rows(batch, len(there) + done, arrays))
                done += len(batch)
                reporter(WorkAdvanced(count=len(batch), written_bytes=written))
                if should_stop() and done < len(missing):
                    writer.save()
                    raise TrainingStoppedError(
                        f"stopped while computing features: {done:,} of {len(missing):,} were "
                        "computed and saved."
                    )


def _open_images(source: PhotoSource, at_once: int) -> Callable[[Sequence[Key]], Images]:
    """Reads the images of a batch. It always has the same shape, so that a photo's features do not
    depend on how many others there are."""
    cached, size = source.cached, source.size
    labels = np.zeros(len(cached.photos), np.int64)
    images = ImageSamples(cached.open_store(), cached.rows, labels, place="disk")
    places = {digest: place for place, digest in enumerate(cached.digests)}

    def read(keys: Sequence[Key]) -> Tensor:
        rows = np.array([places[digest] for digest, _ in keys], np.int64)
        seen = resize(images.read_batch(rows, BufferPool())["image"], size)
        batch = torch.zeros(at_once, size, size, 3, dtype=torch.uint8)
        is_viewed = any(view for _, view in keys)
        batch[: len(keys)] = source.views.make(seen, keys) if is_viewed else seen
        return batch

    return read


def _draw(key: Key, count: int) -> Float[Tensor, " numbers"]:
    digest, view = key
    seed = hashlib.blake2b(f"{digest} {view}".encode(), digest_size=7).digest()
    draw = torch.Generator().manual_seed(int.from_bytes(seed, "little"))
    return torch.rand(count, generator=draw)
