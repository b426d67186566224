"""clew's own data loader: threads copy whole batches into reusable memory."""

import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch

from clew.base.cores import map_ahead
from clew.base.errors import InputError
from clew.base.settings import check_least
from clew.base.texts import shortened
from clew.loading.buffers import BufferPool
from clew.loading.order import (
    Order,
    Rank,
    buffered_order,
    current_rank,
    global_order,
)
from clew.loading.reader import Access, Rows, SampleReader
from clew.loading.samples import LazyDataset, Samples, announce
from clew.loading.stream import StreamDataset

_TASK_BYTES, _LOW_MEMORY_TASK_BYTES = 16 << 20, 2 << 20
_OPEN_FILES = 64


class BatchSource(Protocol):
    """Anything that reads whole batches by sample indices."""

    def __len__(self) -> int: ...

    def read_batch(self, indices: Rows, buffers: BufferPool) -> Any: ...


@runtime_checkable
class GroupedSource(Protocol):
    """A source of fixed-size samples, which can read several small batches at once."""

    sample_bytes: int

    @property
    def reader(self) -> SampleReader: ...

    def read_batches(self, parts: Sequence[Rows], buffers: BufferPool) -> list[Any]: ...


class Loader:
    """clew's data loader: an iterable of batches, where every iteration is the next epoch.

    The order depends only on `seed` and the epoch; each sample comes exactly once per epoch. A
    batch's memory is reused once nothing refers to it any more, so you may keep batches. (Small
    batches share memory with their neighbors: clone what you keep for long.)

    Args:
        dataset: One of clew's datasets, or anything with `read_batch`.
        batch_size: Samples per batch and rank. Several ranks together see the batches that one
            process with the global batch would.
        shuffle: Read the samples in a new random order in every epoch, instead of as stored.
        shuffle_buffer_size: Shuffle shard by shard instead, as a `StreamDataset` does: a sample
            moves by at most so many positions. For stores at URLs that are larger than the cache,
            which otherwise fetches every sample by itself.
        seed: Determines the random order.
        num_workers: Threads that read ahead; 0 reads on demand.
        drop_last: Skip the last batch of an epoch if it is incomplete.
        pin_memory: Speed up copies to a GPU.
        low_memory: Read files piece by piece instead of mapping them. [default: map a store that
            fits easily into free memory]
        max_cache_batches: The most shards that are mapped at a time.
        prefetch_factor: Tasks that each thread reads ahead; a task is one batch, or several small
            ones.
        persistent_workers: Keep the threads alive between epochs.
        rank: This process among those that train together. [default: that of the dataset, or of
            the process group]

    Raises:
        InputError: A value is invalid, or there are fewer samples than processes.
    """

    def __init__(
        self,
        dataset: StreamDataset | LazyDataset | BatchSource,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        num_workers: int = 2,
        drop_last: bool = False,
        pin_memory: bool = False,
        low_memory: bool | None = None,
        max_cache_batches: int | None = None,
        prefetch_factor: int = 1,
        persistent_workers: bool = False,
        rank: Rank | None = None,
        shuffle_buffer_size: int | None = None,
    ) -> None:
        check_least("batch_size", batch_size)
        check_least("prefetch_factor", prefetch_factor)
        check_least("num_workers", num_workers, 0)
        check_least("seed", seed, 0)
        if shuffle_buffer_size is not None and (shuffle_buffer_size < 1 or not shuffle):
            raise InputError(
                "it must be 1 or more, with `shuffle=True`.",
                setting="shuffle_buffer_size",
                value=shuffle_buffer_size,
            )
        self._buffer = shuffle_buffer_size
        self.dataset, self.batch_size, self.shuffle, self.seed = dataset, batch_size, shuffle, seed
        self.num_workers, self.drop_last = num_workers, drop_last
        self.rank = rank or getattr(dataset, "rank", None) or current_rank()
        self._ahead = num_workers * prefetch_factor
        self._threads = _Threads(num_workers, persistent=persistent_workers)
        self._samples = _open(
            dataset, low_memory, max_cache_batches, everywhere=shuffle and not shuffle_buffer_size
        )
        self._grouped = self._samples if isinstance(self._samples, GroupedSource) else None
        if 0 < len(self._samples) < self.rank.count:
            raise InputError(
                f"{len(self._samples):,} samples cannot be split among {self.rank.count} "
                "processes: use fewer processes or more data."
            )
        self._buffers = BufferPool(pinned=pin_memory and torch.cuda.is_available())
        self._epoch, self._done, self._started = 0, 0, False

    def __len__(self) -> int:
        """The number of batches per epoch."""
        return self._count_batches(len(self._samples))

    def __iter__(self) -> Iterator[Any]:
        if self._started:  # the last iteration was stopped early: the next one is a new epoch
            self.set_epoch(self._epoch + 1)
        self._started = True
        return self._run()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; later iterations continue from there. A position
        loaded in the middle of this epoch is kept."""
        if self._started or epoch != self._epoch:
            self._epoch, self._done, self._started = epoch, 0, False

    def state_dict(self) -> dict[str, int]:
        """The loader's position in the epoch; batches already returned count as used."""
        return {
            "seed": self.seed,
            "epoch": self._epoch,
            "done": self._done,
            "samples": len(self._samples),
            "shuffle": self.shuffle,
            **({} if self._buffer is None else {"shuffle_buffer_size": self._buffer}),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume the next iteration from a saved position. Raises InputError if the order of
        samples differs."""
        mine = self.state_dict()
        always = mine.keys() - {"shuffle_buffer_size"}
        if any(type(state.get(name)) is not type(mine[name]) for name in always):
            raise InputError(
                f"the saved position {shortened(state)} is damaged: start over in another folder."
            )
        for name in ("seed", "samples", "shuffle", "shuffle_buffer_size"):
            if state.get(name) != mine.get(name):
                raise InputError(
                    f"the saved position belongs to a loader with {name}={state.get(name)}, but "
                    f"this one has {mine.get(name)}: resume with the same data and settings, or "
                    "start over."
                )
        self._epoch, self._done, self._started = state["epoch"], state["done"], False

    @property
    def _global_batch(self) -> int:
        return self.batch_size * self.rank.count

    def _run(self) -> Iterator[Any]:
        tasks = self._plan()
        self._announce(tasks)
        for batch, size in self._read_ahead(tasks):
            self._done += size
            yield batch
        self.set_epoch(self._epoch + 1)

    def _plan(self) -> list[list[Order]]:
        """The rest of the epoch, as tasks of one or more global batches."""
        order = self._order()[self._done :]
        count = self._count_batches(len(order))
        if self.drop_last:
            order = order[: count * self._global_batch]
        batches = np.split(order, np.arange(1, count) * self._global_batch)[:count]
        group = self._batches_a_task(len(batches))
        return [batches[first : first + group] for first in range(0, len(batches), group)]

    def _order(self) -> Order:
        """The samples of the epoch, of all ranks."""
        count = len(self._samples)
        if not self.shuffle:
            return np.arange(count)
        if self._buffer is None:
            return global_order(count, seed=self.seed, epoch=self._epoch)
        shards = self._stored.reader.shards_of(self._stored.index.rows)
        return buffered_order(shards, self._buffer, seed=self.seed, epoch=self._epoch)

    @property
    def _stored(self) -> Samples:
        """Raises InputError for samples that are not in shards."""
        if not hasattr(self._samples, "reader"):
            raise InputError(
                "these samples are not stored in shards: omit it.",
                setting="shuffle_buffer_size",
                value=self._buffer,
            )
        return cast(Samples, self._samples)

    def _announce(self, tasks: list[list[Order]]) -> None:
        """Shards at a URL are downloaded in the order of the epoch."""
        reader: SampleReader | None = getattr(self._samples, "reader", None)
        if reader is not None and reader.is_remote and tasks:
            mine = np.concatenate([self.rank.share(batch) for task in tasks for batch in task])
            announce(self._samples, mine)

    def _count_batches(self, samples: int) -> int:
        """The number of global batches. A remainder too small to give every rank a sample joins the
        batch before it: a rank without a batch, or with an empty one, would be out of step with the
        others."""
        whole, rest = divmod(samples, self._global_batch)
        own = rest >= self.rank.count or (rest and not whole)
        return whole + int(bool(own) and not self.drop_last)

    def _batches_a_task(self, batches: int) -> int:
        """Small batches are read several at a time, because handing a task to a thread has a
        cost."""
        if self._grouped is None:
            return 1
        is_large = self._grouped.reader.access in ("mapped", "ranges")
        task_bytes = _TASK_BYTES if is_large else _LOW_MEMORY_TASK_BYTES
        few_enough = batches // (4 * max(self.num_workers, 1))
        size = self._grouped.sample_bytes * self.batch_size
        return max(1, min(task_bytes // size, few_enough))

    def _read_ahead(self, tasks: list[list[Order]]) -> Iterator[tuple[Any, int]]:
        if not self.num_workers:
            for task in tasks:
                yield from self._read(task)
            return
        with (
            self._threads.borrow() as threads,
            closing(map_ahead(self._read, tasks, threads, ahead=self._ahead)) as read,
        ):
            yield from chain.from_iterable(read)  # releases a task's batches before the next

    def _read(self, task: list[Order]) -> list[tuple[Any, int]]:
        """The batches of a task, each with the number of samples that all ranks together take from
        it."""
        mine = [self.rank.share(batch) for batch in task]
        if self._grouped is not None:
            batches = self._grouped.read_batches(mine, self._buffers)
        else:
            batches = [self._samples.read_batch(batch, self._buffers) for batch in mine]
        return [(batch, len(whole)) for batch, whole in zip(batches, task, strict=True)]


class _Threads:
    """The threads that read, for one epoch or for all."""

    def __init__(self, count: int, *, persistent: bool) -> None:
        self._count, self._persistent = count, persistent
        self._kept: ThreadPoolExecutor | None = None

    @contextmanager
    def borrow(self) -> Iterator[ThreadPoolExecutor]:
        threads = self._kept or ThreadPoolExecutor(self._count, thread_name_prefix="clew-load")
        if self._persistent and self._kept is None:
            self._kept = threads
            weakref.finalize(self, threads.shutdown, wait=False, cancel_futures=True)
        try:
            yield threads
        finally:
            if not self._persistent:
                threads.shutdown(cancel_futures=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(_Threads, persistent=self._persistent), (self._count,)


def _open(
    dataset: StreamDataset | LazyDataset | BatchSource,
    low_memory: bool | None,
    max_cache_batches: int | None,
    *,
    everywhere: bool,
) -> BatchSource:
    """`everywhere`: a batch draws from the whole store, of which no part could be cached."""
    if not isinstance(dataset, StreamDataset | LazyDataset):
        return _check_source(dataset)
    check_least("max_cache_batches", max_cache_batches)
    if max_cache_batches is not None:
        if low_memory:
            raise InputError(
                "low_memory does not map files, and max_cache_batches limits how many are mapped: "
                "set only one of them."
            )
        return dataset.source.open(access="cached", max_open=max_cache_batches)
    if everywhere and dataset.samples.reader.exceeds_cache:
        return dataset.source.open(access="ranges", max_open=_OPEN_FILES)
    access: dict[bool | None, Access | None] = {None: None, True: "read", False: "mapped"}
    return dataset.source.open(access=access[low_memory], max_open=_OPEN_FILES)


def _check_source(dataset: BatchSource) -> BatchSource:
    if not hasattr(dataset, "read_batch"):
        raise InputError(
            f"{type(dataset).__name__} cannot be loaded: it has no read_batch(indices, "
            "buffers). Give one of clew's datasets, or use PyTorch's own DataLoader."
        )
    return dataset
