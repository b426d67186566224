"""What a dataset knows of its samples without their values, and how it opens them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from clew.errors import InputError
from clew.loading.buffers import BufferPool
from clew.loading.reader import Access, Rows, SampleReader
from clew.loading.splits import SPLIT_NAMES


@dataclass(frozen=True, kw_only=True)
class SampleIndex:
    """One entry a sample, in the order in which the samples lie in the shards."""

    rows: Int64[np.ndarray, " samples"]
    example_ids: Int64[np.ndarray, " samples"]
    question_ids: np.ndarray  # of Python's own texts: nothing is quicker to pick from
    labels: Float32[np.ndarray, " samples"]
    splits: UInt8[np.ndarray, " samples"]

    def select(self, split: str | None) -> "SampleIndex":
        """The samples of one split; None gives all."""
        if split is None:
            return self
        if split not in SPLIT_NAMES:
            raise InputError(f'split is "{split}": choose one of {", ".join(SPLIT_NAMES)}.')
        chosen = self.splits == SPLIT_NAMES.index(split)
        return SampleIndex(**{name: value[chosen] for name, value in vars(self).items()})


def to_strings(texts: Sequence[str]) -> np.ndarray:
    return np.array(texts, dtype=object)


class Samples(Protocol):
    """Reads samples by their places in the data set, as whole batches or one by one."""

    @property
    def index(self) -> SampleIndex: ...

    @property
    def reader(self) -> SampleReader: ...

    def __len__(self) -> int: ...

    def read_batch(self, indices: Rows, buffers: BufferPool) -> Any: ...

    def read_samples(self, indices: Rows, buffers: BufferPool) -> list[Any]: ...

    def read_sample(self, index: int, buffers: BufferPool | None) -> Any: ...


class SampleSource(Protocol):
    """Opens the same samples as often as wanted, each time with another access to the files."""

    def open(self, *, access: Access | None, max_open: int) -> Samples: ...
