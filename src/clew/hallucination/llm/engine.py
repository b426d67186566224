"""The engine: answers many requests at once, in one continuous batch. One thread owns the model; a
request joins at the next pass, and leaves the batch as soon as its answer ends."""

import gc
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch

from clew.base.errors import ClewError, InputError, QueueFullError
from clew.base.garbage import freeze_objects
from clew.hallucination.llm.models import LoadedModel
from clew.hallucination.llm.recording import Recording
from clew.hallucination.llm.requests import Request, Ticket
from clew.hallucination.llm.scheduler import Scheduler

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class EngineLoad:
    """What the engine does and has done."""

    running: int
    waiting: int
    tokens: int
    passes: int


class Engine:
    """Answers requests. Use it as a context manager, or call `close`.

    `recording` says what to record of scored requests. At most `max_rows` answers are generated at
    once; up to `max_waiting` more requests wait. `max_tokens` limits prompt and answer of a
    request together, by default to what the model takes and memory has room for.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        recording: Recording | None = None,
        *,
        max_rows: int = 64,
        max_tokens: int | None = None,
        max_waiting: int = 256,
    ) -> None:
        for setting, value in (("max_rows", max_rows), ("max_waiting", max_waiting)):
            if value < 1:
                raise InputError("give 1 or more.", setting=setting, value=value)
        self._batch = Scheduler(loaded, recording, max_rows=max_rows, max_tokens=max_tokens)
        self.max_tokens = self._batch.max_tokens
        self._max_waiting = max_waiting
        self._waiting: deque[Ticket] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._is_closing = self._is_stopped = False
        self._has_frozen = freeze_objects()
        self._thread = threading.Thread(target=self._run, name="clew-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Ticket:
        """Have a request answered. May be called from any thread. Raises QueueFullError if too
        many requests wait, and InputError for a request that cannot be answered."""
        self._batch.check(request)
        ticket = Ticket(request, self._notify)
        with self._changed:
            self._refuse_if_closed()
            if len(self._waiting) >= self._max_waiting:
                raise QueueFullError(
                    f"{len(self._waiting):,} requests already wait for an answer. Try again later.",
                    waiting=len(self._waiting),
                )
            self._waiting.append(ticket)
            self._changed.notify_all()
        return ticket

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function on the engine's thread, between two passes, and return its result: the
        way to use the model for something else while answers are generated."""
        future: Future[Result] = Future()
        with self._changed:
            self._refuse_if_closed()
            self._calls.append((function, future))
            self._changed.notify_all()
        return future.result()

    @property
    def is_running(self) -> bool:
        """Whether requests are answered: neither stopped, nor ended by an error."""
        return not self._is_stopped

    @property
    def load(self) -> EngineLoad:
        with self._changed:
            return EngineLoad(
                running=len(self._batch.running),
                waiting=len(self._waiting),
                tokens=self._batch.tokens,
                passes=self._batch.passes,
            )

    def close(self, *, drain_seconds: float = 0.0) -> None:
        """Accept no more requests, let the running ones finish for at most that long, and cancel
        the rest."""
        with self._changed:
            self._is_closing = True
            if drain_seconds > 0:
                self._changed.wait_for(self._is_idle, timeout=drain_seconds)
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join()
        if self._has_frozen:
            gc.unfreeze()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_if_closed(self) -> None:
        if self._is_closing:
            raise ClewError("the engine is closed and takes no more requests.")

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _is_idle(self) -> bool:
        return not (self._waiting or self._calls or self._batch.is_busy)

    @torch.inference_mode()
    def _run(self) -> None:
        try:
            while self._take_work():
                self._batch.step()
        finally:
            self._end()

    def _take_work(self) -> bool:
        """Wait for something to do, and start what can be started; False if the engine stops."""
        with self._changed:
            self._changed.notify_all()  # for a caller that waits for the engine to be idle
            self._changed.wait_for(lambda: self._is_stopped or not self._is_idle())
            if self._is_stopped:
                return False
            self._batch.drop_canceled(self._waiting)
            self._batch.admit(self._waiting)
            calls = list(self._calls)
            self._calls.clear()
        for function, future in calls:
            _call(function, future)
        return True

    def _end(self) -> None:
        """No caller waits for an engine that has stopped, whatever the reason."""
        with self._changed:
            was_stopped, self._is_closing, self._is_stopped = self._is_stopped, True, True
            for _, future in self._calls:
                future.set_exception(ClewError("the engine was closed."))
            self._calls.clear()
            error = None
            if not was_stopped:  # it did not stop by itself: an error that nobody foresaw
                error = ClewError("the engine has stopped unexpectedly; its log says why.")
            self._batch.end_all(self._waiting, error)


def _call(function: Callable[[], Any], future: "Future[Any]") -> None:
    try:
        future.set_result(function())
    except BaseException as error:  # the caller's own, raised there
        future.set_exception(error)
