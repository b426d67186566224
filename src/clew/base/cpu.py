"""PyTorch on this CPU: its kernels, and how many threads it computes with."""

import platform
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self, TypeVar

import torch
from threadpoolctl import ThreadpoolController
from torch import nn

from clew.base.cores import CoresBusy, CoreWatch, find_shortage, map_in_threads
from clew.base.progress import Event, Note, Reporter
from clew.base.settings import check_least
from clew.base.texts import counted

# Fewer threads are used if they are faster by this factor.
_FASTER = 1.1
# The load of a machine changes quickly; threads do not change with every change.
_LEAST_SECONDS = 60.0
_WATCHED_SECONDS = 5.0

Item = TypeVar("Item")
Done = TypeVar("Done")


def leave_slow_kernels(model: nn.Module | None = None) -> None:
    """Turn oneDNN off on ARM without SVE. It has no kernels for such a CPU that are faster than
    PyTorch's own: an LSTM takes twice as long with it, the scores of an attention map thirteen
    times. Only a depthwise convolution takes twenty times as long without it: for a `model` that
    has one, it is turned on."""
    is_arm = platform.machine().lower() in ("aarch64", "arm64")
    if is_arm and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        parts = model.modules() if model is not None else ()
        torch.backends.mkldnn.enabled = any(map(_is_depthwise, parts))  # type: ignore[assignment]


def _is_depthwise(part: nn.Module) -> bool:
    return isinstance(part, nn.Conv2d) and part.groups == part.in_channels > 1


@contextmanager
def fast_convolutions() -> Iterator[None]:
    """Depthwise convolutions run in oneDNN's kernels, whatever `leave_slow_kernels` chose for other
    models."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


_numpy_guard = threading.Lock()


@contextmanager
def one_numpy_thread() -> Iterator[None]:
    """NumPy's products with one thread. Several would mostly wait for each other, and go on waiting
    when they are done, on cores that a model's pass needs: it took a quarter longer. Whoever comes
    while another thread is in here does not wait for it, and has its limit."""
    if not _numpy_guard.acquire(blocking=False):
        yield
        return
    try:
        with _find_pools().limit(limits=1):
            yield
    finally:
        _numpy_guard.release()


@cache
def _find_pools() -> ThreadpoolController:
    """Those of NumPy and SciPy: PyTorch keeps its threads."""
    folder = Path(torch.__file__).parent
    of_torch = (f"{folder}/", f"{folder}.libs/")
    every = ThreadpoolController().select(user_api="blas")
    paths = [one.filepath for one in every.lib_controllers]
    return every.select(filepath=[path for path in paths if not path.startswith(of_torch)])


def map_on_cores(
    work: Callable[[Item], Done], items: Iterable[Item], cores: int
) -> Generator[Done, None, None]:
    """Apply `work` to the items, in order, each with one of PyTorch's threads: several small
    batches at a time are faster than several threads for each, and the number of threads changes no
    bit."""

    def run(item: Item) -> Done:
        torch.set_num_threads(1)  # of this thread
        return work(item)

    threads = torch.get_num_threads()
    try:
        yield from map_in_threads(run, items, cores, ahead=cores)
    finally:
        torch.set_num_threads(threads)  # threads that are started later inherit it


def time_on_core(work: Callable[[], object], *, times: int = 2) -> float:
    """The CPU time in seconds that one core takes for `work`, whatever other programs do."""

    def measure(_item: None) -> float:
        work()  # the first time takes longer
        seconds = []
        for _ in range(times):
            started = time.thread_time()
            work()
            seconds.append(time.thread_time() - started)
        return min(seconds)

    return next(map_on_cores(measure, [None], 1))


@dataclass(frozen=True, kw_only=True)
class ThreadsChosen(Event):
    """While other processes hold cores, `threads` are fastest; `faster` than all of them by this
    factor."""

    busy: CoresBusy
    threads: int
    faster: float

    def __str__(self) -> str:
        most = counted(self.busy.threads, "thread")
        if self.threads == self.busy.threads:
            return f"{self.busy.use}; {most} are still fastest"
        now = counted(self.threads, "thread")
        faster = f"{self.faster:.1f} times as fast as {self.busy.threads} now"
        return f"{self.busy.use}: {now} {_is(self.threads)} used, {faster}"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


class Threads:
    """The threads that PyTorch computes with. Threads that wait for each other on cores that other
    processes hold can be slower than a single one, so that their number is chosen by measurement
    while the cores are scarce. A number that is given stays. Use it as a context manager, or call
    `restore`."""

    def __init__(
        self, given: int | None, reporter: Reporter, watch: CoreWatch | None = None
    ) -> None:
        check_least("threads", given)
        self._before = torch.get_num_threads()
        if given is not None:
            torch.set_num_threads(given)
        self._given, self._reporter = given, reporter
        self._most, self._watch = torch.get_num_threads(), watch or CoreWatch()
        self._busy: CoresBusy | None = None
        self._changed = -_LEAST_SECONDS
        self._told: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """PyTorch computes with as many threads as before."""
        torch.set_num_threads(self._before)

    def settle(self, work: Callable[[], object], *, again: bool = False) -> None:
        """Choose the number of threads by timing `work`, if other processes hold cores now and did
        not before, or the other way round; `again`: also if they still do, since this work differs
        from the last."""
        was_busy, others = self._busy, self._watch.look()
        if others is not None:
            self._busy = find_shortage(others, self._most)
        is_same = (self._busy is None) == (was_busy is None)
        is_soon = time.monotonic() - self._changed < _LEAST_SECONDS
        if again and self._busy is not None and self._given is None:
            self._choose(self._busy, work)
        elif is_same or is_soon:
            self._busy = was_busy
        elif self._busy is None:
            self._use_all()
        elif self._given is None:
            self._choose(self._busy, work)
        else:
            self._changed = time.monotonic()
            self._reporter(self._busy)

    def _use_all(self) -> None:
        self._changed = time.monotonic()
        if torch.get_num_threads() < self._most:
            torch.set_num_threads(self._most)
            now = counted(self._most, "thread")
            self._reporter(Note(f"the cores are free again: {now} are used"))

    def _choose(self, busy: CoresBusy, work: Callable[[], object]) -> None:
        self._changed = time.monotonic()
        _time(work, 1)  # the first time takes longer
        seconds = {count: _time(work, count) for count in sorted({1, busy.free, self._most})}
        best = min(seconds, key=lambda count: seconds[count])
        faster = seconds[self._most] / max(seconds[best], 1e-9)
        if faster < _FASTER:
            best = self._most
        torch.set_num_threads(best)
        chosen = ThreadsChosen(busy=busy, threads=best, faster=faster)
        if chosen.threads != self._told:
            self._reporter(chosen)
        self._told = best


def _time(work: Callable[[], object], threads: int) -> float:
    torch.set_num_threads(threads)
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def watch_cores(reporter: Reporter, device: str | None = None) -> Reporter:
    """A reporter for training on the CPU that also says, once, that other processes hold the
    cores."""
    if torch.cuda.is_available() and device != "cpu":
        return reporter
    watch, is_told, last = CoreWatch(), False, time.monotonic()

    def report(event: Event, /) -> None:
        nonlocal is_told, last
        reporter(event)
        if is_told or time.monotonic() - last < _WATCHED_SECONDS:
            return
        last = time.monotonic()
        busy = find_shortage(watch.look() or 0.0, torch.get_num_threads())
        if busy is not None:
            is_told = True
            reporter(busy)

    return report
