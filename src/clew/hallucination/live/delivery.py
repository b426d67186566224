"""Answers on their way from the engine to who asked: their tokens and, at the end, the whole answer
get their risk. Those of one step are scored together."""

import hashlib
import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from clew.base.errors import ClewError
from clew.base.memory import run_in_halves
from clew.hallucination.detectors import Detector
from clew.hallucination.detectors.data import Risk, unavailable
from clew.hallucination.detectors.detector import on_device
from clew.hallucination.live.features import Answer, LiveFeatures
from clew.hallucination.live.scoring import LiveEvaluation, assess, read_generation, read_maps
from clew.hallucination.llm.engine import Engine
from clew.hallucination.llm.models import LoadedModel
from clew.hallucination.llm.recording import reduce_rows
from clew.hallucination.llm.requests import (
    Ended,
    Events,
    Finished,
    Request,
    Sampling,
    Ticket,
    Token,
)
from clew.hallucination.traces.compact import to_float16


@dataclass(frozen=True, kw_only=True)
class LiveAnswer:
    """A whole answer with its risk. `tokens` are those of the text: tokens of a repetition that it
    was cut before may have come as events. `vector` is what adaptation needs of it, if asked for
    and it could be checked. Of one that `is_withheld`, only the risk is left. Its `calls`
    of tools, in OpenAI's shape, and the `reasoning` before it are not in its text."""

    text: str
    tokens: tuple[Token, ...]
    ended: Ended
    risk: Risk
    vector: Float32[np.ndarray, " numbers"] | None = None
    is_withheld: bool = False
    calls: tuple[dict[str, Any], ...] = ()
    reasoning: str = ""

    @property
    def finish_reason(self) -> str:
        """OpenAI's: an answer that was cut where the detector's training answers were has stopped.
        One that was replaced is complete."""
        if self.is_withheld:
            return "stop" if self.text else "content_filter"
        if self.ended == "length":
            return "length"
        return "tool_calls" if self.calls else "stop"


class LiveTicket(Events[LiveAnswer]):
    """A submitted request: its tokens come with their risk, then the answer."""

    def __init__(self, ticket: Ticket, draws: Sequence[Ticket] = ()) -> None:
        super().__init__(LiveAnswer)
        self.request = ticket.request
        self._ticket, self._draws = ticket, draws  # answers that are drawn for it

    def answer(self) -> LiveAnswer:
        """Wait for the whole answer."""
        *_, last = self
        assert isinstance(last, LiveAnswer)
        return last

    def cancel(self) -> None:
        """End the answer as soon as possible: it follows, with what there is of it."""
        for ticket in (self._ticket, *self._draws):
            ticket.cancel()


logger = logging.getLogger(__name__)
# The engine needs the interpreter and the device, too: while answers are generated, scoring is
# followed by a rest of this many times as long, and further events come together meanwhile.
_REST, _LONGEST_REST_SECONDS = 3, 0.1
# What a detector may raise for features that nobody foresaw.
_FAILURES = (RuntimeError, MemoryError, ValueError, TypeError, LookupError, ArithmeticError)
_NOT_ASKED = "scoring was turned off for this answer"
_DRAWS_FAILED = "the answers to compare it with could not be generated"


@dataclass(kw_only=True, eq=False)
class _Pending:
    """A request whose answer is not complete: the tokens so far, and the answers drawn for it."""

    ticket: LiveTicket
    draws: list[Ticket]
    tokens: list[Token] = field(default_factory=list)
    samples: list[str | None] = field(default_factory=list)  # None for one that failed
    finished: Finished | None = None

    @property
    def is_complete(self) -> bool:
        return self.finished is not None and len(self.samples) == len(self.draws)

    def answer(self) -> Answer:
        finished = self.finished
        assert finished is not None
        return Answer(
            prompt=self.ticket.request.prompt,
            tokens=finished.tokens,
            question=self.ticket.request.question,
            text=finished.text,
            stop_reason=finished.ended,
            logprobs=finished.logprobs,
            entropies=finished.entropies,
            samples=[text for text in self.samples if text is not None] or None,
        )


# The risk of an answer, and what adaptation needs of it.
_Assessed = tuple[Risk, np.ndarray | None]
# What happened to a request, or to an answer that is drawn for it.
_Event = Token | Finished | ClewError
_Item = tuple[_Pending, bool, _Event]


class Delivery:
    """Takes the engine's events, and delivers them with their risks (and `vectors`) from a thread
    of its own, so that the engine does not wait for it."""

    def __init__(
        self, loaded: LoadedModel, detector: Detector, engine: Engine, *, vectors: bool = False
    ) -> None:
        self._loaded, self._detector, self._engine = loaded, detector, engine
        self._vectors = vectors
        # The states of single tokens come from the engine to the host, and are few.
        self._probe = on_device(detector.token_probe, "cpu")
        self._evaluation = LiveEvaluation(loaded, detector)
        device = loaded.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._open: set[_Pending] = set()
        self._generated: set[_Pending] = set()  # those of them that the engine is busy with
        self._is_idle = threading.Event()
        self._has_ended = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="clew-delivery", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> LiveTicket:
        ticket = self._engine.submit(request)
        draws: list[Ticket] = []
        pending = _Pending(ticket=LiveTicket(ticket, draws), draws=draws)
        try:
            for drawn in self._draw_requests(request):
                draws.append(self._engine.submit(drawn))
            self._enter(pending)
        except ClewError:
            pending.ticket.cancel()
            raise
        ticket.on_event(partial(self._receive, pending))
        for one in draws:
            one.on_event(lambda event: self._items.put((pending, True, event)))
        return pending.ticket

    @property
    def is_running(self) -> bool:
        return not self._has_ended

    def _enter(self, pending: _Pending) -> None:
        with self._lock:
            if self._has_ended:
                raise ClewError("scoring has ended after an error: see the log, and start again.")
            self._open.add(pending)
            self._generated.add(pending)
            self._is_idle.clear()

    def _receive(self, pending: _Pending, event: _Event) -> None:
        """Called by the engine's thread."""
        self._items.put((pending, False, event))
        if isinstance(event, Token):
            return
        with self._lock:
            self._generated.discard(pending)
            if not self._generated:
                self._is_idle.set()

    def close(self) -> None:
        """Deliver what there is, and end. The engine has been closed before."""
        self._items.put(None)
        self._thread.join()

    def _draw_requests(self, request: Request) -> Iterator[Request]:
        """Requests for further answers to the question, if the detector compares answers."""
        if not request.is_scored or "samples" not in self._detector.fields:
            return
        made = read_generation(self._detector)
        prompt = ",".join(map(str, request.prompt)).encode()
        seed = int.from_bytes(hashlib.sha256(prompt).digest()[:4], "little")
        for number in range(made.draws):
            sampling = Sampling(temperature=made.draw_temperature, seed=seed + number)
            yield replace(request, sampling=sampling, is_scored=False, top_logprobs=0)

    def _run(self) -> None:
        try:
            while self._deliver_some():
                pass
        finally:
            self._end()

    def _deliver_some(self) -> bool:
        """Wait for events, deliver them, and rest; False after the last ones. None of them, nor
        their records, are kept while the next ones are waited for."""
        items = [self._items.get()]
        while not self._items.empty():
            items.append(self._items.get())
        started = time.perf_counter()
        if not self._deliver(items):
            return False
        rest = _REST * (time.perf_counter() - started)
        self._is_idle.wait(min(rest, _LONGEST_REST_SECONDS))
        return True

    def _deliver(self, items: Sequence[_Item | None]) -> bool:
        """Score and deliver events, in their order; False if they are the last ones."""
        real = [item for item in items if item is not None]
        tokens = [e for _, is_drawn, e in real if isinstance(e, Token) and not is_drawn]
        risks = iter(self._token_risks(tokens))
        complete: dict[_Pending, None] = {}
        for pending, is_drawn, event in real:
            if is_drawn:
                if not isinstance(event, Token):
                    is_whole = isinstance(event, Finished) and event.ended != "canceled"
                    pending.samples.append(event.text if is_whole else None)
            elif isinstance(event, Token):
                pending.tokens.append(replace(event, risk=next(risks), nodes=None))
                pending.ticket.put(pending.tokens[-1])
            elif isinstance(event, ClewError):
                pending.ticket.cancel()  # nobody needs the answers drawn for it
                self._leave(pending, event)
            else:
                pending.finished = event
            if pending.is_complete:
                complete[pending] = None
        if complete:
            self._finish([*complete])
        return len(real) == len(items)

    def _token_risks(self, tokens: Sequence[Token]) -> list[float | None]:
        """The risks of tokens, of several answers at once; None for those not scored."""
        try:
            return self._score_tokens(tokens)
        except (ClewError, *_FAILURES):
            logger.exception("scoring %d tokens failed", len(tokens))
            return [None] * len(tokens)

    @torch.inference_mode()
    def _score_tokens(self, tokens: Sequence[Token]) -> list[float | None]:
        probe = self._probe
        risks: list[float | None] = [None] * len(tokens)
        nodes = {row: t.nodes for row, t in enumerate(tokens) if t.nodes is not None}
        if probe is None or not nodes:
            return risks
        states = to_float16(torch.stack(list(nodes.values()))).float()[..., : probe.node_dim]
        numbers = torch.tensor(
            [(tokens[row].logprob, tokens[row].entropy) for row in nodes], device=states.device
        )
        for row, risk in zip(nodes, probe.score(states, *numbers.T).tolist(), strict=True):
            risks[row] = risk
        return risks

    def _finish(self, complete: Sequence[_Pending]) -> None:
        """Score and deliver whole answers."""
        reasons = {one: self._why_unscored(one) for one in complete}
        scored = [one for one, reason in reasons.items() if reason is None]
        found = dict(zip(scored, self._assess_safely(scored), strict=True))
        for pending, reason in reasons.items():
            assert (finished := pending.finished) is not None
            risk, vector = found[pending] if reason is None else self._refuse(reason)
            answer = LiveAnswer(
                text=finished.text,
                # Those of a repetition have been delivered, but the answer is cut before it.
                tokens=tuple(pending.tokens[: len(finished.tokens)]),
                ended=finished.ended,
                risk=risk,
                vector=vector,
            )
            self._leave(pending, answer)

    def _why_unscored(self, pending: _Pending) -> str | None:
        if not pending.ticket.request.is_scored:
            return _NOT_ASKED
        is_recorded = pending.finished is not None and pending.finished.record is not None
        if is_recorded and None not in pending.samples:
            return None
        reason = pending.answer().why_unavailable
        not_drawn = _DRAWS_FAILED if None in pending.samples else None
        return reason or not_drawn or "the answer was not recorded"

    def _refuse(self, reason: str) -> _Assessed:
        return unavailable(reason, method=self._detector.name), None

    def _assess_safely(self, pending: Sequence[_Pending]) -> list[_Assessed]:
        """The risks of answers. What goes wrong makes these unavailable; others go on."""
        try:
            return self._assess(pending)
        except ClewError as error:
            reason = str(error)
        except _FAILURES as error:
            logger.exception("scoring %d answers failed", len(pending))
            reason = f"scoring it failed ({type(error).__name__})"
        return [self._refuse(reason)] * len(pending)

    def _assess(self, pending: Sequence[_Pending]) -> list[_Assessed]:
        """The risks of answers; in halves if they do not fit in device memory."""

        def give_up(some: Sequence[_Pending], _: Exception) -> list[_Assessed] | None:
            reason = f"scoring it ran out of memory on {self._loaded.device}"
            return [self._refuse(reason)] if len(some) == 1 else None

        if not pending:
            return []
        return [*chain(*run_in_halves(self._assess_all, pending, give_up))]

    @torch.inference_mode()
    def _assess_all(self, pending: Sequence[_Pending]) -> list[_Assessed]:
        found = [one.finished for one in pending if one.finished is not None]
        records = [finished.record for finished in found if finished.record is not None]
        with self._beside_the_engine():
            features = LiveFeatures(
                reduce_rows(records),
                [one.answer() for one in pending],
                self._detector.sample_shape,
                pass_maps=lambda s: self._engine.call(partial(read_maps, self._loaded, s)),
                evaluate=self._evaluate if self._evaluation.fields else None,
            )
            return [*zip(*assess(self._detector, features, vectors=self._vectors), strict=True)]

    def _evaluate(self, answers: Sequence[Answer]) -> dict[str, np.ndarray]:
        return self._engine.call(partial(self._evaluation.evaluate, answers))

    @contextmanager
    def _beside_the_engine(self) -> Iterator[None]:
        """On a GPU, work in a stream of its own: waiting for it does not mean waiting for the
        engine's next passes, and they do not wait for it."""
        if self._stream is None:
            yield
            return
        # The records were copied in the engine's stream, which is the default one.
        self._stream.wait_stream(torch.cuda.default_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            try:
                yield
            finally:  # the records are freed after it
                self._stream.synchronize()

    def _leave(self, pending: _Pending, last: LiveAnswer | ClewError) -> None:
        with self._lock:
            self._open.discard(pending)
        pending.ticket.put(last)

    def _end(self) -> None:
        """Nobody waits for an answer that no longer comes."""
        with self._lock:
            self._has_ended = True
            left = list(self._open)
            self._open.clear()
        for pending in left:
            pending.ticket.put(ClewError("the answer was not finished: scoring has ended."))
