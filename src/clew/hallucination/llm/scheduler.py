"""The scheduler: what the next pass takes of each running request, and what it gave. Requests join
and leave between passes; a closed batch has its passes to itself."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, repeat
from math import isfinite

import torch
from torch import Tensor

from clew.base.errors import ClewError, InputError, without_settings
from clew.base.memory import free_memory, is_out_of_memory
from clew.hallucination.llm.generation import ActiveRequest, Scheduled
from clew.hallucination.llm.graphs import GraphPass, PlainPass, PlainPasses, choose_passes
from clew.hallucination.llm.memory import Prefixes, RowPool, SharedPrefix
from clew.hallucination.llm.models import LoadedModel, context_tokens, end_tokens
from clew.hallucination.llm.passes import PASS_ERRORS, PackedModel
from clew.hallucination.llm.prompts import AnswerEnd, Cut, Pieces, shared_prefix
from clew.hallucination.llm.recording import Recording, RowRecord, record_dtype
from clew.hallucination.llm.requests import Ended, Finished, Request, Ticket, Token

# Tokens that one pass takes: more would hold up the running answers. Of prompts, at least some.
_CHUNK = {"cpu": 128, "cuda": 512}
_MIN_CHUNK = 32
# Requests with more tokens have passes of their own, which take turns with those of the others:
# after a pass of the long ones, the short ones have one and a half times as long. So they take less
# than twice as long as without long ones, and one pass; neither kind waits for the other to end.
_LONG = {"cpu": 512, "cuda": 4096}
_SHORT_SHARE = 1.5
# Where no answer waits for the next pass.
BATCH_CHUNK = {"cpu": 256, "cuda": 4096}
# A beginning of prompts is kept if at least this many tokens need not be passed again.
_MIN_SHARED = 8


class Scheduler:
    """All running requests, the model, the cache and the record of their rows."""

    def __init__(
        self,
        loaded: LoadedModel,
        recording: Recording | None,
        *,
        max_rows: int,
        max_tokens: int | None = None,
        model: PackedModel | None = None,
        is_exact: bool = False,
        graphs: bool = True,
    ) -> None:
        self._model = model or PackedModel(loaded.model)
        self._record = None
        if recording is not None:
            dtype = record_dtype(loaded.model)
            self._record = RowRecord(recording, self._model.device, dtype)
        self._pool = RowPool(self._model, self._record, max_rows)
        self._tokenizer, self._ends = loaded.tokenizer, end_tokens(*loaded)
        self._vocabulary = loaded.model.get_input_embeddings().num_embeddings
        context = context_tokens(loaded.model)
        self.max_tokens = min(max_tokens or context, context, self._pool.max_tokens)
        self._pieces = Pieces(loaded.tokenizer)
        self._answer_ends: dict[Cut, AnswerEnd] = {}
        self._prefixes = Prefixes()
        self._passes = PlainPasses(self._model, self._record)
        if graphs:
            self._passes = choose_passes(self._model, self._record, max_rows, is_exact=is_exact)
        self._in_flight: PlainPass | GraphPass | None = None
        self._owed_seconds = 0.0  # to the short requests
        self._is_closed_batch = False
        self.running: list[ActiveRequest] = []
        self._sharing: list[ActiveRequest] = []  # others wait for their beginnings
        self.prompt_tokens = self.tokens = self.passes = 0

    @torch.inference_mode()
    def run(
        self,
        requests: Sequence[Request],
        on_pass: Callable[[int, bool], object] = lambda _tokens, _is_prompt: None,
    ) -> list[Finished]:
        """Answer these requests together, and nothing beside them: what each pass takes depends on
        them alone, all prompts before the first token of an answer. `on_pass` is called after each
        pass with its number of tokens, and whether they are of prompts. The records are valid until
        the next call. Raises what a pass raises."""
        prompts = [request.prompt for request in requests]
        tickets = [Ticket(request, lambda: None) for request in requests]
        lengths = _shared_lengths(prompts) if self._model.continues else [0] * len(prompts)
        waiting = list(zip(tickets, lengths, strict=True))
        self._prefixes, self._is_closed_batch = Prefixes(), True
        try:
            most = max(len(one.prompt) + one.max_new_tokens for one in requests)
            is_recorded = any(request.is_scored for request in requests)
            self._pool.fit(len(requests), most, is_recorded=is_recorded)
            while waiting or self.is_busy:
                for ticket, shared in list(waiting):
                    if not self._is_prefix_on_its_way(ticket.request.prompt):
                        waiting.remove((ticket, shared))
                        self._start(ticket, self._pool.take(), shared)
                before = self.prompt_tokens, self.tokens
                self.step()
                passed = self.prompt_tokens - before[0], self.tokens - before[1]
                on_pass(sum(passed), passed[0] > 0)
            return [ticket.finished() for ticket in tickets]
        finally:
            self._in_flight, self._is_closed_batch = None, False
            for running in list(self.running):
                self._leave(running)
            self._pool.release()

    @property
    def looks_ahead(self) -> bool:
        """Whether the next pass is launched before one is read."""
        return self._passes.looks_ahead

    def answer_end(self, cut: Cut) -> AnswerEnd:
        if cut not in self._answer_ends:
            self._answer_ends[cut] = AnswerEnd(self._tokenizer, cut, self._ends)
        return self._answer_ends[cut]

    def text_of(self, tokens: Sequence[int]) -> str:
        return self._pieces.whole(tokens)

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
        is_blocked = False
        for ticket in list(waiting):
            prompt, row = ticket.request.prompt, None
            is_long = len(prompt) > _LONG[self._kind]
            if (is_blocked and is_long) or self._is_prefix_on_its_way(prompt):
                continue
            try:
                # As many rows as long requests have are left to short ones.
                others = 1 + sum(map(self._is_long, self.running)) if is_long else 0
                row = self._pool.take_row(len(prompt), others)
                if row is not None:
                    waiting.remove(ticket)
                    next_ones = (other.request.prompt for other in islice(waiting, 8))
                    shared = self._prefixes.length_to_keep(prompt, next_ones)
                    self._start(ticket, row, shared if self._model.continues else 0)
                elif not is_blocked:
                    is_blocked = self._pool.has_rows and any(map(self._is_long, self.running))
                    if not is_blocked:
                        return
            except PASS_ERRORS as error:
                if row is None:
                    waiting.remove(ticket)
                else:
                    self._pool.give_back(row)
                ticket.put(_failure(error))
                self._free(error)

    def drop_canceled(self, waiting: "deque[Ticket]") -> None:
        for running in [r for r in self.running if r.ticket.is_canceled]:
            self._finish(running, "canceled")
        for ticket in [t for t in waiting if t.is_canceled]:
            waiting.remove(ticket)
            ticket.put(Finished(tokens=(), text="", ended="canceled", logprobs=(), entropies=()))

    def end_all(self, waiting: "deque[Ticket]", error: ClewError | None) -> None:
        """End every request: with an error, or as one that is canceled."""
        for ticket in [*(running.ticket for running in self.running), *waiting]:
            ticket.is_canceled = True
            if error is not None:
                ticket.put(error)
        if error is not None:
            waiting.clear()
            for running in list(self.running):
                self._leave(running)
        self.drop_canceled(waiting)

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
        done = self._in_flight if self._passes.looks_ahead else launched
        if self._passes.looks_ahead:
            self._read()
        self._record_and_keep(launched)
        self._in_flight = launched
        if not self._passes.looks_ahead:
            self._read()
        if done is not None:
            is_long, seconds = (
                self._is_long(done.segments[0].running),
                time.perf_counter() - started,
            )
            self._owed_seconds = _SHORT_SHARE * seconds if is_long else self._owed_seconds - seconds

    @property
    def is_busy(self) -> bool:
        return bool(self.running or self._in_flight)

    def _launch(self) -> PlainPass | GraphPass | None:
        if not self.running:
            return None
        self._pool.reserve(max(r.position + max(1, len(r.to_pass)) for r in self.running))
        some, others = self._whose_turn()
        taken = self._take_some(some) or self._take_some(others)
        if not taken:
            return None
        try:
            records = any(self._records(one.running) for one in taken)
            launched = self._passes.launch(taken, records=records)
        except PASS_ERRORS:
            for one in taken:
                one.give_back()
            raise
        self.passes += 1
        return launched

    def _whose_turn(self) -> tuple[list[ActiveRequest], list[ActiveRequest]]:
        """The requests of the next pass, and those to take if these have nothing to pass."""
        if self._is_closed_batch:
            again = [r for r in self.running if r.is_again]
            others = [r for r in self.running if not r.is_again]
            return [r for r in others if r.to_pass] or others, again
        long = [running for running in self.running if self._is_long(running)]
        short = [running for running in self.running if not self._is_long(running)]
        return (long, short) if self._owed_seconds <= 0 else (short, long)

    def _is_long(self, running: ActiveRequest) -> bool:
        return running.length > _LONG[self._kind]

    def _take_some(self, some: list[ActiveRequest]) -> list[Scheduled]:
        """What the pass takes of these requests, in the order of a pass. Long prompts get equal
        parts; short ones, of which a few passes are enough, come in their order."""
        if not some:
            return []
        prompts = sum(bool(running.to_pass) for running in some)
        left, found = max(_MIN_CHUNK, self._chunk(some) - len(some) + prompts), list[Scheduled]()
        is_long = any(map(self._is_long, some)) and not self._is_closed_batch
        share = max(1, left // prompts) if is_long and prompts else left
        for running in some:
            whole = len(running.to_pass) if left > 0 else 0
            taken = running.take(min(left, share) if self._model.continues else whole)
            if taken is not None:
                found.append(taken)
                left -= len(taken.tokens) if taken.number is None else 0
        return self._model.in_order(found)

    @property
    def _kind(self) -> str:
        return "cuda" if self._passes.looks_ahead else "cpu"

    def _chunk(self, some: list[ActiveRequest]) -> int:
        """How many tokens a pass of these requests takes."""
        most = (BATCH_CHUNK if self._is_closed_batch else _CHUNK)[self._kind]
        record = self._record if any(map(self._records, some)) else None
        keeps_weights = record is not None and record.recording.needs_attention
        if not keeps_weights and not self._is_closed_batch:
            return most
        longest = max(running.length for running in some)
        return self._model.most_tokens(most, longest, keeps_weights=keeps_weights)

    def _record_and_keep(self, launched: PlainPass | GraphPass | None) -> None:
        """Add a pass to the record, and keep the beginnings of prompts that it completed."""
        if launched is None:
            return
        try:
            launched.add_to_record()
        except PASS_ERRORS as error:
            self._fail([segment.running for segment in launched.segments], error)
            return
        for running in [one.running for one in launched.segments if one.number is None]:
            if running.position == running.shared and not running.has_left:
                try:
                    self._keep_prefix(running)
                except PASS_ERRORS as error:  # others pass their whole prompts
                    self._free(error)

    def _read(self) -> None:
        """Move every request on by what the pass in flight gave it."""
        done, self._in_flight = self._in_flight, None
        if done is None:
            return
        try:
            chosen, nodes = iter(done.read()), done.nodes()
        except PASS_ERRORS as error:
            self._fail([segment.running for segment in done.segments], error)
            return
        of_segments = repeat(None) if nodes is None else nodes.unbind()
        for taken, alive, own in zip(done.segments, done.alive, of_segments, strict=False):
            token = next(chosen) if taken.wants_logits else None
            if alive and not taken.running.has_left:
                try:
                    self._advance(taken, token, own)
                except PASS_ERRORS as error:
                    self._fail([taken.running], error)

    def _advance(self, taken: Scheduled, token: Token | None, nodes: Tensor | None) -> None:
        running = taken.running
        if taken.number is None:
            self.prompt_tokens += len(taken.tokens)
        else:
            self.tokens += 1
            running.pass_token(nodes if running.request.is_scored else None)
        if token is not None and not isfinite(token.logprob) and not self._is_closed_batch:
            self._fail([running], ArithmeticError("its logits are not finite"))
            return
        if problem := running.chooser.problem:
            self._fail([running], InputError(f"the schema took too much: {problem}."))
            return
        if token is not None:
            running.choose(token)
        if taken.completes_record:
            self._finish(running, running.ended or "length")
        elif not running.is_again:
            self._deliver(running)

    def _deliver(self, running: ActiveRequest) -> None:
        for token in () if self._is_closed_batch else running.deliver():
            running.ticket.put(token)
        if running.is_complete:
            if self._records(running) and running.needs_new_record:
                self._record_again(running)
            else:
                self._finish(running, running.ended or "length")

    def _record_again(self, running: ActiveRequest) -> None:
        """Pass prompt and answer once more: tokens after the answer have been recorded."""
        running.is_again, running.shared = True, 0
        running.launched = len(running.tokens)
        self._begin(running, [*running.request.prompt, *running.tokens])

    def _start(self, ticket: Ticket, row: int, shared: int) -> None:
        end = self.answer_end(ticket.request.cut)
        running = ActiveRequest(ticket=ticket, end=end, pieces=self._pieces, row=row)
        self._begin(running, ticket.request.prompt)
        if shared >= running.position + _MIN_SHARED:
            running.shared = shared
            self._sharing.append(running)
        self.running.append(running)

    def _begin(self, running: ActiveRequest, tokens: list[int]) -> None:
        """Start a row with the longest beginning that is known already."""
        row, prompt = running.row, running.request.prompt
        if self._record is not None and running.request.is_scored:
            self._record.start(row, len(prompt))
        prefix = self._prefixes.find(prompt, recorded=self._records(running))
        running.position = len(prefix.tokens) if prefix else 0
        running.to_pass = list(tokens[running.position :])
        if prefix is not None:
            self._model.cache.paste_tokens(row, prefix.cached)
            if self._records(running) and self._record and prefix.record is not None:
                self._record.paste_tokens(slice(row, row + 1), prefix.record)

    def _keep_prefix(self, running: ActiveRequest) -> None:
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
        self._sharing = [r for r in self._sharing if r.shared and not r.has_left]
        return any(
            r.shared < len(prompt) and prompt[: r.shared] == r.request.prompt[: r.shared]
            for r in self._sharing
        )

    def _finish(self, running: ActiveRequest, ended: Ended) -> None:
        copied, answer = None, len(running.tokens)
        if self._record is not None and running.request.is_scored and ended != "canceled":
            sizes = len(running.request.prompt) + answer, answer
            # Of a closed batch, nobody gets the row.
            copied = self._record.copy(running.row, *sizes, clones=not self._is_closed_batch)
        self._leave(running)
        running.ticket.put(running.finish(ended, copied))

    def _leave(self, running: ActiveRequest) -> None:
        running.has_left = True
        self.running.remove(running)
        self._pool.give_back(running.row)

    def _records(self, running: ActiveRequest) -> bool:
        return self._record is not None and running.request.is_scored

    def _give_up_some(self, error: Exception) -> None:
        """A pass failed. If memory ran out, the request with the most tokens is given up, and the
        others are tried again; otherwise none of them can be helped."""
        if is_out_of_memory(error) and len(self.running) > 1:
            largest = max(self.running, key=lambda running: running.length)
            self._fail([largest], error)
        else:
            self._fail(list(self.running), error)

    def _fail(self, some: list[ActiveRequest], error: Exception) -> None:
        if self._is_closed_batch:
            raise error
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


def _shared_lengths(prompts: Sequence[list[int]]) -> list[int]:
    """For each prompt, how many of its first tokens are kept for those after it: what all have in
    common, and a whole prompt that follows again, as those of drawn answers do."""
    lengths = [len(shared_prefix(prompts)), *[0] * (len(prompts) - 1)]
    for number in range(1, len(prompts) - 1):
        is_first = number == 1 or prompts[number] != prompts[number - 1]
        if is_first and prompts[number] == prompts[number + 1]:
            lengths[number] = len(prompts[number]) - 1
    return lengths
