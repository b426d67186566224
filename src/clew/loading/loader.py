"""clew's own loader: threads that copy whole batches into memory that is used again."""

import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from clew.errors import InputError
from clew.loading.buffers import BufferPool
from clew.loading.order import Order, Rank, check_seed, current_rank, global_order
from clew.loading.reader import Access, Rows, SampleReader
from clew.loading.samples import LazyDataset, check_cache
from clew.loading.stream import StreamDataset
from clew.threads import map_ahead

_TASK_BYTES, _LOW_MEMORY_TASK_BYTES = 16 << 20, 2 << 20
_OPEN_FILES = 64


class BatchSource(Protocol):
    """Anything that reads whole batches by the places of their samples."""

    def __len__(self) -> int: ...

    def read_batch(self, indices: Rows, buffers: BufferPool) -> Any: ...


@runtime_checkable
class GroupedSource(Protocol):
    """A source of samples of one size, which reads several small batches at once."""

    sample_bytes: int

    @property
    def reader(self) -> SampleReader: ...

    def read_batches(self, parts: Sequence[Rows], buffers: BufferPool) -> list[Any]: ...


class Loader:
    """An iterable of ready batches; every iteration is the next epoch.

    `dataset` is one of clew's data sets, or anything with `read_batch`. The order follows from
    `seed` and the epoch alone; each sample comes exactly once an epoch. With several ranks,
    `batch_size` is that of one rank, and together they see the batches that one process with
    the whole batch would. `num_workers` threads read ahead; 0 reads when asked.

    A batch's memory is used again once nothing refers to it any more: keep what you like. (Small
    batches share theirs with their neighbours: clone what you keep for long.)
    `low_memory` reads files piece by piece instead of mapping them; None maps a store that fits
    easily into free memory. `max_cache_batches` keeps at most so many shards mapped at a time.
    Each thread is `prefetch_factor` tasks ahead (a task is a batch, or several small ones), and
    lives on from epoch to epoch with `persistent_workers`. `pin_memory` is for copies to a GPU.
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
    ) -> None:
        if batch_size < 1:
            raise InputError("give 1 or more.", setting="batch_size", value=batch_size)
        if prefetch_factor < 1:
            raise InputError("give 1 or more.", setting="prefetch_factor", value=prefetch_factor)
        if num_workers < 0:
            raise InputError("give 0 or more.", setting="num_workers", value=num_workers)
        check_seed(seed)
        self.dataset, self.batch_size, self.shuffle, self.seed = dataset, batch_size, shuffle, seed
        self.num_workers, self.drop_last = num_workers, drop_last
        self.rank = rank or getattr(dataset, "rank", None) or current_rank()
        self._ahead = num_workers * prefetch_factor
        self._threads = _Threads(num_workers, persistent=persistent_workers)
        self._samples = _open(dataset, low_memory, max_cache_batches)
        self._grouped = self._samples if isinstance(self._samples, GroupedSource) else None
        if 0 < len(self._samples) < self.rank.count:
            raise InputError(
                f"{len(self._samples):,} samples cannot be shared by {self.rank.count} processes: "
                f"train with fewer, or on more data."
            )
        self._buffers = BufferPool(pinned=pin_memory and torch.cuda.is_available())
        self._epoch, self._done, self._begun = 0, 0, False

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._count_batches(len(self._samples))

    def __iter__(self) -> Iterator[Any]:
        if self._begun:  # an iteration that was broken off: the next one is another epoch
            self.set_epoch(self._epoch + 1)
        self._begun = True
        return self._run()

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch; those after it count on. A position that was loaded
        in the middle of it stays."""
        if self._begun or epoch != self._epoch:
            self._epoch, self._done, self._begun = epoch, 0, False

    def state_dict(self) -> dict[str, int]:
        """Where the loader is: batches that were given out count as used."""
        return {
            "seed": self.seed,
            "epoch": self._epoch,
            "done": self._done,
            "samples": len(self._samples),
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next iteration goes on from there; raises InputError for another order of samples."""
        mine = self.state_dict()
        for name in ("seed", "samples", "shuffle"):
            if state[name] != mine[name]:
                raise InputError(
                    f"the saved position belongs to a loader with {name} {state[name]}, this one "
                    f"has {mine[name]}: resume with the same data and settings, or start afresh."
                )
        self._epoch, self._done, self._begun = state["epoch"], state["done"], False

    @property
    def _global_batch(self) -> int:
        return self.batch_size * self.rank.count

    def _run(self) -> Iterator[Any]:
        for batch, size in self._read_ahead(self._plan()):
            self._done += size
            yield batch
        self.set_epoch(self._epoch + 1)

    def _plan(self) -> list[list[Order]]:
        """What is still to be read of the epoch, as tasks of one or more global batches."""
        order = np.arange(len(self._samples))
        if self.shuffle:
            order = global_order(len(order), seed=self.seed, epoch=self._epoch)
        order = order[self._done :]
        count = self._count_batches(len(order))
        if self.drop_last:
            order = order[: count * self._global_batch]
        batches = np.split(order, np.arange(1, count) * self._global_batch)[:count]
        group = self._batches_a_task(len(batches))
        return [batches[first : first + group] for first in range(0, len(batches), group)]

    def _count_batches(self, samples: int) -> int:
        """What would not give every rank a sample goes into the batch before it: a rank without
        a batch, or with an empty one, would be out of step with the others."""
        whole, rest = divmod(samples, self._global_batch)
        own = rest >= self.rank.count or (rest and not whole)
        return whole + int(bool(own) and not self.drop_last)

    def _batches_a_task(self, batches: int) -> int:
        """Small batches are read several at a time: handing a task to a thread has its price."""
        if self._grouped is None:
            return 1
        mapped = self._grouped.reader.access == "mapped"
        task_bytes = _TASK_BYTES if mapped else _LOW_MEMORY_TASK_BYTES
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
            yield from chain.from_iterable(read)  # lets go of a task's batches before the next

    def _read(self, task: list[Order]) -> list[tuple[Any, int]]:
        """The batches of a task, each with the samples that all ranks together take of it."""
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
) -> BatchSource:
    if not isinstance(dataset, StreamDataset | LazyDataset):
        return _check_source(dataset)
    if max_cache_batches is not None:
        check_cache(max_cache_batches)
        if low_memory:
            raise InputError(
                "low_memory maps no file at all, max_cache_batches says how many: give one of them."
            )
        return dataset.source.open(access="cached", max_open=max_cache_batches)
    access: dict[bool | None, Access | None] = {None: None, True: "read", False: "mapped"}
    return dataset.source.open(access=access[low_memory], max_open=_OPEN_FILES)


def _check_source(dataset: BatchSource) -> BatchSource:
    if not hasattr(dataset, "read_batch"):
        raise InputError(
            f"{type(dataset).__name__} cannot be loaded: it has no read_batch(indices, buffers). "
            f"Give one of clew's data sets, or use PyTorch's own DataLoader."
        )
    return dataset
