"""The running requests of the engine: what the next pass takes of each, and what it gave."""

import time
from collections import deque
from dataclasses import dataclass
from itertools import islice, repeat
from math import isfinite

import torch
from torch import Tensor

from clew.base.errors import ClewError, InputError, without_settings
from clew.base.memory import free_memory, is_out_of_memory
from clew.hallucination.llm.decoder import record_dtype
from clew.hallucination.llm.drafts import Draft, Pieces, Running, Taken
from clew.hallucination.llm.graphs import Launched, choose_passes
from clew.hallucination.llm.memory import Prefixes, Room, SharedPrefix
from clew.hallucination.llm.models import LoadedModel, context_tokens, end_tokens
from clew.hallucination.llm.passes import PackedModel, Segment, in_order
from clew.hallucination.llm.prompts import AnswerEnd, Cut
from clew.hallucination.llm.recording import Recording, RowRecord
from clew.hallucination.llm.requests import Ended, Request, Ticket
from clew.hallucination.llm.sampling import Chooser, NextToken

# Tokens that one pass takes: more would hold up the running answers. Of prompts, at least some.
_CHUNK = {"cpu": 128, "cuda": 512}
_MIN_CHUNK = 32
# Requests with more tokens have passes of their own, which take turns with those of the others.
_LONG = {"cpu": 512, "cuda": 4096}
_SHORT_SHARE = 1.5
# A pass keeps all layers' attention weights until they are reduced; prompts are passed in smaller
# parts where these would take more.
_MAX_WEIGHTS_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}
# What a pass may raise: whatever it is, the engine continues with other requests.
PASS_ERRORS = (RuntimeError, MemoryError, ValueError, TypeError, LookupError, ArithmeticError)
# A beginning of prompts is kept if at least this many tokens need not be passed again.
_MIN_SHARED = 8


@dataclass(kw_only=True)
class _InFlight:
    """A pass that was launched, and what it took of which requests."""

    taken: list[Taken]
    is_long: bool
    launched: Launched
    alive: list[bool]


class _Turns:
    """Whose pass is next where long and short requests run: after a pass of the long ones, the
    short ones have one and a half times as long. So they take less than twice as long as without
    long ones, and one pass, and neither kind waits for the other to end."""

    def __init__(self) -> None:
        self._owed = 0.0

    def are_for_long(self) -> bool:
        return self._owed <= 0

    def note(self, seconds: float, *, is_long: bool) -> None:
        self._owed = _SHORT_SHARE * seconds if is_long else self._owed - seconds


class RunningBatch:
    """All running requests, the model, the cache and the record of their rows."""

    def __init__(
        self,
        loaded: LoadedModel,
        recording: Recording | None,
        *,
        max_rows: int,
        max_tokens: int | None,
    ) -> None:
        self._model = PackedModel(loaded.model)
        self._record = None
        if recording is not None:
            dtype = record_dtype(loaded.model)
            self._record = RowRecord(recording, self._model.device, dtype)
        self._room = Room(self._model, self._record, max_rows)
        self._tokenizer, self._ends = loaded.tokenizer, end_tokens(*loaded)
        self._vocabulary = loaded.model.get_input_embeddings().num_embeddings
        context = context_tokens(loaded.model)
        self.max_tokens = min(max_tokens or context, context, self._room.max_tokens)
        self._pieces = Pieces(loaded.tokenizer)
        self._answer_ends: dict[Cut, AnswerEnd] = {}
        self._prefixes = Prefixes()
        self._refuse_own_attention(loaded)
        self._passes = choose_passes(self._model, self._record, max_rows)
        self._in_flight: _InFlight | None = None
        self._turns = _Turns()
        self.running: list[Running] = []
        self.prompt_tokens = self.tokens = self.passes = 0

    @torch.inference_mode()
    def _refuse_own_attention(self, loaded: LoadedModel) -> None:
        """Pass one token: raises InputError for a model whose layers do not use the attention that
        they are given, and would mix the requests of a pass."""
        self._room.reserve(1)
        planned = self._model.plan([Segment(row=0, tokens=[0], start=0)])
        self._model.run(planned, planned.last)
        if not self._model.cache.is_allocated:
            raise InputError(
                f"models of the family {loaded.model.config.model_type} cannot answer live: their "
                "attention cannot be replaced. Capture them with clew.extract, and score answers "
                "that exist with clew.score."
            )

    def check(self, request: Request) -> None:
        """Raise InputError for a request that cannot be answered."""
        if not request.prompt:
            raise InputError("the prompt is empty.", setting="prompt", value="")
        if min(request.prompt) < 0 or max(request.prompt) >= self._vocabulary:
            raise InputError(
                f"the prompt has a token that the model does not know: it knows 0 to "
                f"{self._vocabulary - 1:,}."
            )
        asked = len(request.prompt) + request.max_new_tokens
        if asked > self.max_tokens:
            raise InputError(
                f"the prompt has {len(request.prompt):,} tokens; with up to "
                f"{request.max_new_tokens:,} new ones that is more than the limit of "
                f"{self.max_tokens:,}. Shorten the prompt, or lower `max_new_tokens`.",
                setting="max_new_tokens",
                value=request.max_new_tokens,
            )

    def admit(self, waiting: "deque[Ticket]") -> None:
        """Give rows to waiting requests, in their order, as long as there are any. Where a long one
        waits for another long one, short ones go ahead."""
        is_blocked, most = False, _LONG[self._kind]
        for ticket in list(waiting):
            request = ticket.request
            if is_blocked and len(request.prompt) > most:
                continue
            if self._is_prefix_on_its_way(request.prompt):
                continue
            try:
                row = self._room.take_row(len(request.prompt), self._left_to_short(request))
            except PASS_ERRORS as error:
                waiting.remove(ticket)
                ticket.put(_failure(error))
                self._free(error)
                continue
            if row is None and not is_blocked:
                is_blocked = self._room.has_rows and any(map(self._is_long, self.running))
                if not is_blocked:
                    return
            if row is None:
                continue
            waiting.remove(ticket)
            others = (other.request.prompt for other in islice(waiting, 8))
            shared = self._prefixes.length_to_keep(request.prompt, others)
            try:
                self._start(ticket, row, shared)
            except PASS_ERRORS as error:
                self._room.give_back(row)
                ticket.put(_failure(error))
                self._free(error)

    def _left_to_short(self, request: Request) -> int:
        """As many rows as long requests have are left to short ones."""
        if len(request.prompt) <= _LONG[self._kind]:
            return 0
        return 1 + sum(map(self._is_long, self.running))

    def drop_canceled(self, waiting: "deque[Ticket]") -> None:
        for running in [r for r in self.running if r.ticket.is_canceled]:
            self._finish(running, "canceled")
        for ticket in [t for t in waiting if t.is_canceled]:
            waiting.remove(ticket)
            ticket.put(self._new_draft(ticket.request).finish("canceled", None))

    def cancel_all(self, waiting: "deque[Ticket]") -> None:
        for ticket in [*(r.ticket for r in self.running), *waiting]:
            ticket.is_canceled = True
        self.drop_canceled(waiting)

    def fail_all(self, waiting: "deque[Ticket]") -> None:
        """End every request with an error: the engine has stopped."""
        for ticket in [*(running.ticket for running in self.running), *waiting]:
            ticket.put(ClewError("the engine has stopped unexpectedly; its log says why."))
        waiting.clear()
        for running in list(self.running):
            self._leave(running)

    def step(self) -> None:
        """One pass: a token of every running answer, and some of the new prompts. Where the device
        works ahead, what is read is the pass before."""
        started = time.perf_counter()
        if self._passes.looks_ahead and any(r.chooser.needs_history for r in self.running):
            self._read()
        try:
            launched = self._launch()
        except PASS_ERRORS as error:
            self._read()
            self._give_up_some(error)
            return
        if self._passes.looks_ahead:
            done = self._in_flight
            self._read()
            self._record_and_keep(launched)
            self._in_flight = launched
        else:
            done = launched
            self._record_and_keep(launched)
            self._in_flight = launched
            self._read()
        if done is not None:
            self._turns.note(time.perf_counter() - started, is_long=done.is_long)

    @property
    def is_busy(self) -> bool:
        return bool(self.running or self._in_flight)

    def _launch(self) -> "_InFlight | None":
        if not self.running:
            return None
        self._room.reserve(max(r.position + max(1, len(r.to_pass)) for r in self.running))
        some, others = self._whose_turn()
        taken = self._take_some(some) or self._take_some(others)
        if not taken:
            return None
        records = any(self._records(one.running) for one in taken)
        asking = [t.running.asking for t in taken if t.segment.wants_logits]
        try:
            launched = self._passes.launch([t.segment for t in taken], asking, records=records)
        except PASS_ERRORS:
            for one in taken:
                one.give_back()
            raise
        self.passes += 1
        is_long = self._is_long(taken[0].running)
        alive = [True] * len(taken)
        return _InFlight(taken=taken, is_long=is_long, launched=launched, alive=alive)

    def _whose_turn(self) -> tuple[list[Running], list[Running]]:
        """The requests of the next pass, and those to take if these have nothing to pass."""
        long = [running for running in self.running if self._is_long(running)]
        short = [running for running in self.running if not self._is_long(running)]
        return (long, short) if self._turns.are_for_long() else (short, long)

    def _is_long(self, running: Running) -> bool:
        return running.length > _LONG[self._kind]

    def _take_some(self, some: list[Running]) -> list[Taken]:
        """What the pass takes of these requests, in the order of a pass. Long prompts get equal
        parts; short ones, of which a few passes are enough, come in their order."""
        if not some:
            return []
        prompts = sum(bool(running.to_pass) for running in some)
        left, found = max(_MIN_CHUNK, self._chunk(some) - len(some) + prompts), {}
        is_long = any(map(self._is_long, some))
        share = max(1, left // prompts) if is_long and prompts else left
        for running in some:
            taken = running.take(min(left, share))
            if taken is not None:
                found[running.row] = taken
                left -= len(taken.segment.tokens) if taken.number is None else 0
        return [found[segment.row] for segment in in_order([t.segment for t in found.values()])]

    @property
    def _kind(self) -> str:
        return "cuda" if self._passes.looks_ahead else "cpu"

    def _chunk(self, some: list[Running]) -> int:
        """How many tokens a pass of these requests takes."""
        most, records = _CHUNK[self._kind], any(map(self._records, some))
        if not (records and self._record and self._record.recording.needs_attention):
            return most
        observer, longest = self._model.observer, max(running.length for running in some)
        columns = 1 << longest.bit_length()
        a_token = observer.num_layers * observer.heads * columns * 4
        return max(1, min(most, _MAX_WEIGHTS_BYTES[self._kind] // a_token))

    def _record_and_keep(self, flying: "_InFlight | None") -> None:
        """Add a pass to the record, and keep the beginnings of prompts that it completed."""
        if flying is None:
            return
        flying.alive = [taken.is_alive for taken in flying.taken]
        try:
            flying.launched.record(flying.alive)
        except PASS_ERRORS as error:
            self._fail([t.running for t in flying.taken], error)
            return
        for running in [t.running for t in flying.taken if t.number is None]:
            if running.position == running.shared and not running.has_left:
                try:
                    self._keep_prefix(running)
                except PASS_ERRORS as error:  # others pass their whole prompts
                    self._free(error)

    def _read(self) -> None:
        """Move every request on by what the pass in flight gave it."""
        flying, self._in_flight = self._in_flight, None
        if flying is None:
            return
        try:
            chosen, nodes = iter(flying.launched.read()), flying.launched.nodes()
        except PASS_ERRORS as error:
            self._fail([t.running for t in flying.taken], error)
            return
        of_segments = repeat(None) if nodes is None else nodes.unbind()
        for taken, alive, own in zip(flying.taken, flying.alive, of_segments, strict=False):
            token = next(chosen) if taken.segment.wants_logits else None
            if alive and not taken.running.has_left:
                try:
                    self._advance(taken, token, own)
                except PASS_ERRORS as error:
                    self._fail([taken.running], error)

    def _advance(self, taken: Taken, token: NextToken | None, nodes: Tensor | None) -> None:
        running, draft = taken.running, taken.running.draft
        if taken.number is None:
            self.prompt_tokens += len(taken.segment.tokens)
        else:
            self.tokens += 1
            draft.pass_token(nodes if running.request.is_scored else None)
        if token is not None and not isfinite(token.logprob):
            self._fail([running], ArithmeticError("its logits are not finite"))
            return
        if token is not None:
            draft.choose(token)
        if taken.completes_record:
            self._finish(running, draft.ended or "length")
        elif not running.is_again:
            self._deliver(running)

    def _deliver(self, running: Running) -> None:
        draft = running.draft
        for token in draft.deliver():
            running.ticket.put(token)
        if draft.is_complete:
            if self._records(running) and draft.needs_new_record:
                self._record_again(running)
            else:
                self._finish(running, draft.ended or "length")

    def _record_again(self, running: Running) -> None:
        """Pass prompt and answer once more: tokens after the answer have been recorded."""
        running.is_again, running.shared = True, 0
        running.launched = len(running.draft.tokens)
        whole = [*running.request.prompt, *running.draft.tokens]
        self._begin(running, whole)

    def _start(self, ticket: Ticket, row: int, shared: int) -> None:
        request = ticket.request
        running = Running(
            ticket=ticket,
            draft=self._new_draft(request),
            chooser=Chooser(request.sampling, request.max_new_tokens, request.top_logprobs),
            row=row,
            to_pass=[],
        )
        self._begin(running, request.prompt)
        if shared >= running.position + _MIN_SHARED:
            running.shared = shared
        self.running.append(running)

    def _begin(self, running: Running, tokens: list[int]) -> None:
        """Start a row with the longest beginning that is known already."""
        row, prompt = running.row, running.request.prompt
        if self._record is not None:
            self._record.start(row, len(prompt))
        prefix = self._prefixes.find(prompt, recorded=self._records(running))
        running.position = len(prefix.tokens) if prefix else 0
        running.to_pass = list(tokens[running.position :])
        if prefix is not None:
            self._model.cache.paste_tokens(row, prefix.cached)
            if self._record is not None and prefix.record is not None:
                self._record.paste_tokens(row, prefix.record)

    def _keep_prefix(self, running: Running) -> None:
        row, length = running.row, running.shared
        running.shared, record = 0, None
        if self._record is not None and running.request.is_scored:
            record = self._record.copy_tokens(row, length)
        self._prefixes.keep(
            SharedPrefix(
                tokens=running.request.prompt[:length],
                cached=self._model.cache.copy_tokens(row, length),
                record=record,
            )
        )

    def _is_prefix_on_its_way(self, prompt: list[int]) -> bool:
        """Whether a beginning of this prompt is being passed for another one: worth waiting for."""
        return any(
            r.shared
            and r.shared < len(prompt)
            and prompt[: r.shared] == r.request.prompt[: r.shared]
            for r in self.running
        )

    def _new_draft(self, request: Request) -> Draft:
        if request.cut not in self._answer_ends:
            end = AnswerEnd(self._tokenizer, request.cut, self._ends)
            self._answer_ends[request.cut] = end
        return Draft(request=request, end=self._answer_ends[request.cut], pieces=self._pieces)

    def _finish(self, running: Running, ended: Ended) -> None:
        draft, kept = running.draft, None
        if self._record is not None and running.request.is_scored and ended != "canceled":
            answer = len(draft.tokens)
            kept = self._record.copy(running.row, len(running.request.prompt) + answer, answer)
        self._leave(running)
        running.ticket.put(draft.finish(ended, kept))

    def _leave(self, running: Running) -> None:
        running.has_left = True
        self.running.remove(running)
        self._room.give_back(running.row)

    def _records(self, running: Running) -> bool:
        return self._record is not None and running.request.is_scored

    def _give_up_some(self, error: Exception) -> None:
        """A pass failed. If memory ran out, the request with the most tokens is given up, and the
        others are tried again; otherwise none of them can be helped."""
        if is_out_of_memory(error) and len(self.running) > 1:
            largest = max(self.running, key=lambda r: r.position + len(r.to_pass))
            self._fail([largest], error)
        else:
            self._fail(list(self.running), error)

    def _fail(self, some: list[Running], error: Exception) -> None:
        for running in [running for running in some if not running.has_left]:
            self._leave(running)
            running.ticket.put(_failure(error))
        self._free(error)

    def _free(self, error: Exception) -> None:
        if is_out_of_memory(error):
            self._passes.forget()
        free_memory()


def _failure(error: Exception) -> ClewError:
    """What a request ends with that could not be answered."""
    lines = without_settings(str(error)).splitlines() or [type(error).__name__]
    reason = "memory ran out" if is_out_of_memory(error) else f"the model failed ({lines[0]})"
    failure = ClewError(
        f"{reason} while this request was answered. Try again later, or with a shorter prompt."
    )
    failure.__cause__ = error
    return failure
