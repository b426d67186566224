"""What a dataset knows about its samples without reading values, and the map-style datasets: any
sample by index, read on demand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float32, Int64, UInt8
from torch.utils.data import Dataset

from clew.base.errors import InputError
from clew.base.settings import check_least
from clew.loading.buffers import BufferPool, prepare_worker
from clew.loading.reader import Access, Rows, SampleReader
from clew.loading.splits import SPLIT_NAMES


@dataclass(frozen=True, kw_only=True)
class SampleIndex:
    """Questions, labels and splits: one entry per sample, in the order of the samples in the
    shards."""

    rows: Int64[np.ndarray, " samples"]
    example_ids: Int64[np.ndarray, " samples"]
    question_ids: np.ndarray  # Python strings: the fastest to index
    labels: Float32[np.ndarray, " samples"]
    splits: UInt8[np.ndarray, " samples"]

    def select(self, split: str | None) -> "SampleIndex":
        """The samples of one split; None gives all."""
        if split is None:
            return self
        if split not in SPLIT_NAMES:
            raise InputError(
                f"choose from: {', '.join(SPLIT_NAMES)}.", setting="split", value=split
            )
        return self.at(np.flatnonzero(self.splits == SPLIT_NAMES.index(split)))

    def at(self, places: Rows) -> "SampleIndex":
        """The samples at these places."""
        return SampleIndex(**{name: value[places] for name, value in vars(self).items()})


def to_strings(texts: Sequence[str]) -> np.ndarray:
    return np.array(texts, dtype=object)


class Samples(Protocol):
    """Reads samples by their indices in the dataset, as whole batches or one by one."""

    @property
    def index(self) -> SampleIndex: ...

    @property
    def reader(self) -> SampleReader: ...

    def __len__(self) -> int: ...

    def read_batch(self, indices: Rows, buffers: BufferPool) -> Any: ...

    def read_samples(self, indices: Rows, buffers: BufferPool) -> list[Any]: ...

    def read_sample(self, index: int, buffers: BufferPool | None) -> Any: ...


class SampleSource(Protocol):
    """Opens the same samples any number of times, each time with its own file access."""

    def open(self, *, access: Access | None, max_open: int) -> Samples: ...


class LazyDataset(Dataset[Any]):
    """A map-style dataset: samples by index. Opening it reads a small index, but none of the
    values.

    At most `max_cache_batches` shards are mapped at a time. With `copy=False` the sequence of a
    single sample is a view of its shard's bytes, which are read when touched: faster, but changing
    it in place changes what is read there next.
    """

    def __init__(
        self, source: SampleSource, *, max_cache_batches: int = 2, copy: bool = True
    ) -> None:
        check_least("max_cache_batches", max_cache_batches)
        self.source, self._copy = source, copy
        self.samples = source.open(access="cached", max_open=max_cache_batches)
        if self.samples.reader.exceeds_cache:
            self.samples = source.open(access="ranges", max_open=max_cache_batches)
        self._buffers = BufferPool()

    @property
    def index(self) -> SampleIndex:
        """Question ids, labels and splits of all samples."""
        return self.samples.index

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        buffers = self._buffers if self._copy else None
        return self.samples.read_sample(check_index(index, len(self)), buffers)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples at once; PyTorch's DataLoader fetches a batch this way."""
        prepare_worker()
        places = [check_index(index, len(self)) for index in indices]
        return self.samples.read_samples(np.array(places, np.int64), self._buffers)


def announce(samples: Any, indices: Rows) -> None:
    """Says which samples will be read, in order; see `SampleReader.expect`."""
    for part in (samples, getattr(samples, "sequences", None)):
        if part is not None and part.reader.is_remote:
            part.reader.expect(samples.index.rows[indices])


def check_index(index: int, count: int) -> int:
    """The index counted from the start; negative ones count from the end. Raises IndexError if out
    of range."""
    if not -count <= index < count:
        raise IndexError(f"there are {count:,} samples: index {index} is out of range")
    return int(index) % count
