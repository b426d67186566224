"""Work that goes on beside the model's: putting batches into Arrow, hashing, writing."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

from clew.progress import Reporter, WorkAdvanced


class Background:
    """A thread that puts batches into Arrow, writes and syncs them while the next are made.

    Two tasks may wait behind the one under way, so memory stays bounded. What a task raises
    comes out at the next call, and no task after it is begun: a shard whose last rows could not
    be written must not be closed as if they had been.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="clew-writer")
        self._pending: deque[Future[None]] = deque()
        self._failed = False

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def do(self, task: Callable[[], WorkAdvanced]) -> None:
        self.wait(leaving=2)
        self._pending.append(self._thread.submit(self._run, task))

    def wait(self, leaving: int = 0) -> None:
        """Until no more than `leaving` tasks are unfinished; raises what any of them raised."""
        while self._pending and (len(self._pending) > leaving or self._pending[0].done()):
            self._pending.popleft().result()

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _run(self, task: Callable[[], WorkAdvanced]) -> None:
        if self._failed:
            raise CancelledError
        try:
            self._reporter(task())
        except BaseException:
            self._failed = True
            raise
