"""Map-style data sets: any sample by its place, read when it is asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from clew.errors import InputError
from clew.loading.buffers import BufferPool
from clew.loading.samples import SampleIndex, SampleSource


class LazyDataset(Dataset[Any]):
    """Samples by place. Opening it reads a light index, none of the values.

    At most `max_cache_batches` shards are mapped at a time. With `copy=False` the sequence of a
    sample that is asked for alone is a view of its shard's bytes, which are read when they are
    touched: quicker, but whoever changes it in place changes what is read there next.
    """

    def __init__(
        self, source: SampleSource, *, max_cache_batches: int = 2, copy: bool = True
    ) -> None:
        check_cache(max_cache_batches)
        self.source, self._copy = source, copy
        self.samples = source.open(access="cached", max_open=max_cache_batches)
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
        """Several samples in one go; PyTorch's loader asks for a batch in this way."""
        places = [check_index(index, len(self)) for index in indices]
        return self.samples.read_samples(np.array(places, np.int64), self._buffers)


def check_cache(max_cache_batches: int) -> None:
    if max_cache_batches < 1:
        raise InputError(f"max_cache_batches is {max_cache_batches}: give 1 or more.")


def check_index(index: int, count: int) -> int:
    """The place from the beginning; it counts from the end when negative."""
    if not -count <= index < count:
        raise IndexError(f"there are {count:,} samples: {index} is none of them")
    return int(index) % count
