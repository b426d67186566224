"""Whole batches of answers with their record: many requests of the engine at once, whose passes
depend on nothing but them. Answers that exist already are passed once, with their prompts."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import GenerationConfig

from clew.base.errors import InputError
from clew.base.memory import is_out_of_memory
from clew.base.progress import (
    Note,
    Reporter,
    StepStarted,
    WorkAdvanced,
    ignore_event,
    report_work,
)
from clew.hallucination.llm.checked import Checked, CheckMemory
from clew.hallucination.llm.generation import draw_numbers, split_rows
from clew.hallucination.llm.memory import BatchPlan
from clew.hallucination.llm.models import LoadedModel
from clew.hallucination.llm.observe import listen_to_whole
from clew.hallucination.llm.packing import Segment, to_device
from clew.hallucination.llm.passes import COLUMNS_STEP, PASS_ERRORS, PackedModel
from clew.hallucination.llm.prompts import AnswerEnd, Cut, StopReason, shared_prefix
from clew.hallucination.llm.recording import (
    Reading,
    Recording,
    RowRecord,
    record_dtype,
    reduce_rows,
)
from clew.hallucination.llm.requests import Finished, Request, Sampling
from clew.hallucination.llm.scheduler import BATCH_CHUNK, Scheduler
from clew.hallucination.traces.compact import Reduced

MAX_ROWS = 1024
# Logits in float32 at a time when the tokens of given answers are scored.
_SCORED_VALUES = 1 << 26
# Largest relative difference, by norm and layer, that rounding can explain.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1.5e-1}
# The kernels for 4-bit and 8-bit weights round depending on the batch's values.
_QUANTIZED_TOLERANCE = 0.3

# The log-probabilities and entropies of each answer's tokens, and the record.
Recorded = tuple[list[tuple[list[float], list[float]]], Reduced]


class Decoder:
    """Greedy answers with their record, drawn answers, and the record of given ones, for any batch
    size up to `max_rows` and prompts of any lengths."""

    def __init__(
        self,
        loaded: LoadedModel,
        recording: Recording,
        *,
        cut: Cut = "none",
        max_new_tokens: int = 1,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self.recording, self.shape, self.basis = recording, recording.shape, recording.basis
        self.cut, self.max_new_tokens = cut, max_new_tokens
        self.packed = PackedModel(loaded.model)
        self.model, self.observer = loaded.model, self.packed.observer
        self.device = self.packed.device
        self._loaded, self._max_rows = loaded, max_rows
        self.batch = self._make_batch()

    def _make_batch(self, *, graphs: bool = True) -> Scheduler:
        return Scheduler(
            self._loaded,
            self.recording,
            max_rows=self._max_rows,
            model=self.packed,
            is_exact=True,
            graphs=graphs,
        )

    @property
    def answer_end(self) -> AnswerEnd:
        return self.batch.answer_end(self.cut)

    @property
    def uses_graphs(self) -> bool:
        return self.batch.looks_ahead

    def simplify(self) -> None:
        """Pass tokens in a slower way that fewer models cannot take: without CUDA graphs, or with
        the model's own attention."""
        if not self.uses_graphs:
            self.packed.stop_packing()
        self.batch = self._make_batch(graphs=False)

    def close(self) -> None:
        """Free what it has besides the model."""

    @contextmanager
    def watched(self, on_passed: Callable[[int], object]) -> Iterator[None]:
        """While open, `on_passed` is called after each pass with its number of tokens."""
        before, self.packed.on_passed = self.packed.on_passed, on_passed
        try:
            yield
        finally:
            self.packed.on_passed = before

    def answer(self, prompts: Sequence[Sequence[int]]) -> tuple[list[Finished], Reduced]:
        """Answer the prompts (token ids) and record every token."""
        answers = self._run([self._request(prompt) for prompt in prompts])
        reduced = reduce_rows([one.record for one in answers if one.record is not None])
        # The records are parts of that of all rows, which they would keep in memory.
        return [replace(one, record=None) for one in answers], reduced

    def draw(
        self,
        prompts: Sequence[Sequence[int]],
        question_ids: Sequence[str],
        plan: BatchPlan,
        *,
        count: int,
        temperature: float,
    ) -> list[list[Finished]]:
        """`count` drawn answers to every prompt, in batches no larger than planned.
        Every random number depends only on the question's id, the draw and the token's position,
        so that neither batching nor an interrupted run changes what is drawn."""
        requests = [
            self._request(
                prompt, sampling=Sampling(temperature=temperature, numbers=row), is_scored=False
            )
            for prompt, name in zip(prompts, question_ids, strict=True)
            for row in draw_numbers(name, count, self.max_new_tokens)
        ]
        longest = max(map(len, prompts)) + self.max_new_tokens
        rows = max(1, min(plan.rows, plan.tokens // longest))
        if rows > count:  # all draws of a question share the pass of its prompt
            rows -= rows % count
        starts = range(0, len(requests), rows)
        drawn = [one for start in starts for one in self._run(requests[start : start + rows])]
        return [drawn[start : start + count] for start in range(0, len(drawn), count)]

    def record(
        self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
    ) -> Recorded:
        """Record given answers; also returns the log-probability and entropy of their tokens."""
        return self.start_record(prompts, answers)()

    @torch.inference_mode()
    def start_record(
        self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
    ) -> Callable[[], Recorded]:
        """As `record`, but a GPU is not waited for: the returned function does."""
        whole = [[*p, *a] for p, a in zip(prompts, answers, strict=True)]
        borders = [len(prompt) for prompt in prompts]
        record = RowRecord(self.recording, self.device, record_dtype(self.model))
        rows = FilledRows(self.packed, whole, record=record, prompts=borders)
        found: list[tuple[list[tuple[int, int]], Reading]] = []
        wanted = [range(p - 1, len(w) - 1) for p, w in zip(borders, whole, strict=True)]
        for places, logits in rows.fill(wanted):
            tokens = [whole[row][place + 1] for row, place in places]
            found.append((places, _start_scoring(logits, tokens)))
        copies = [
            record.copy(row, len(tokens), len(tokens) - borders[row], clones=False)
            for row, tokens in enumerate(whole)
        ]
        reduced = reduce_rows(copies)

        def finish() -> Recorded:
            scores: list[tuple[list[float], list[float]]] = [([], []) for _ in whole]
            for places, reading in found:
                for (row, _), *numbers in zip(places, *reading.get().tolist(), strict=True):
                    for kept, number in zip(scores[row], numbers, strict=True):
                        kept.append(number)
            return scores, reduced

        return finish

    def read(
        self, prompts: Sequence[Sequence[int]], answers: Sequence[tuple[Sequence[int], StopReason]]
    ) -> tuple[list[Finished], Reduced]:
        """Given answers and why each ended, as if they had been generated."""
        scores, reduced = self.record(prompts, [tokens for tokens, _ in answers])
        finished = [
            Finished(
                tokens=tuple(tokens),
                text=self.batch.text_of(tokens),
                ended=reason,
                logprobs=tuple(logprobs),
                entropies=tuple(entropies),
            )
            for (tokens, reason), (logprobs, entropies) in zip(answers, scores, strict=True)
        ]
        return finished, reduced

    def time_batch(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        steps: int = 1,
        clock: Callable[[], float] | None = None,
    ) -> tuple[float, float]:
        """Seconds to pass the prompts, and seconds for one more token of every row: the fastest of
        some `steps`."""
        now = clock or self._now
        last, of_prompts, of_steps = now(), 0.0, list[float]()

        def note(_tokens: int, is_prompt: bool) -> None:
            nonlocal last, of_prompts
            taken, last = now() - last, now()
            if is_prompt:
                of_prompts += taken
            else:
                of_steps.append(taken)

        timed = [self._request(one, max_new_tokens=steps + 1, ignores_end=True) for one in prompts]
        self.batch.run(timed, note)
        # The first one warms up; where the device works ahead, the last one only reads.
        return of_prompts, min(of_steps[:-1] if self.uses_graphs else of_steps[1:])

    def _request(self, prompt: Sequence[int], **changes: Any) -> Request:
        settings = {"max_new_tokens": self.max_new_tokens, "cut": self.cut} | changes
        return Request(prompt=list(prompt), **settings)

    def _run(self, requests: Sequence[Request]) -> list[Finished]:
        return self.batch.run(requests, lambda tokens, _: self.packed.on_passed(tokens))

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def score_tokens(
    logits: Float[Tensor, "places vocabulary"], tokens: Sequence[int]
) -> tuple[list[float], list[float]]:
    """Log-probability and entropy of tokens that follow."""
    both = _start_scoring(logits, tokens).get().tolist()
    return both[0], both[1]


def _start_scoring(logits: Float[Tensor, "places vocabulary"], tokens: Sequence[int]) -> Reading:
    """A few at a time: all logits in float32 would take more memory than the pass."""
    found, followed = [], to_device(list(tokens), logits.device)[:, None]
    parts = split_rows(logits, max(1, _SCORED_VALUES // logits.shape[1]))
    for part, token in zip(parts, followed.split([*map(len, parts)]), strict=True):
        logprobs = part.float().log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1)
        found.append(torch.stack([logprobs.gather(1, token)[:, 0], entropy]))
    return Reading(torch.cat(found, dim=1))


class FilledRows:
    """Whole sequences, each in a row of a KV cache, which has space for `extra_tokens` behind it.
    With a `record`, they are recorded, the first `prompts` of each as prompts."""

    def __init__(
        self,
        model: PackedModel,
        sequences: Sequence[Sequence[int]],
        *,
        extra_tokens: int = 0,
        record: RowRecord | None = None,
        prompts: Sequence[int] = (),
    ) -> None:
        self.model, self.sequences, self._record = model.with_own_cache(), sequences, record
        self._extra_tokens = extra_tokens
        longest = max(map(len, sequences)) + extra_tokens
        size = len(sequences), -(-longest // COLUMNS_STEP) * COLUMNS_STEP
        self.model.cache.prepare_resize(*size)()
        self._keeps_weights = record is not None and record.recording.needs_attention
        most = BATCH_CHUNK["cuda" if self.model.device.type == "cuda" else "cpu"]
        self._most = model.most_tokens(most, longest, keeps_weights=self._keeps_weights)
        if record is not None:
            record.prepare_resize(*size)()
            for row, prompt in enumerate(prompts):
                record.start(row, prompt)

    def fill(
        self, wanted: Sequence[range]
    ) -> Iterator[tuple[list[tuple[int, int]], Float[Tensor, "places vocabulary"]]]:
        """Prefill: pass the sequences, in parts; yields the logits at the `wanted` positions of
        each, as far as a part has some, with their rows and positions."""
        starts = [[*s[: w.start + 1]] for s, w in zip(self.sequences, wanted, strict=True)]
        passed = self._share_prefixes(starts)
        rest = [
            Segment(row=row, tokens=sequence[passed[row] :], start=passed[row])
            for row, sequence in enumerate(self.sequences)
        ]
        passes = list(self._split(rest))
        is_whole = not any(passed) and not self._extra_tokens and len(passes) == 1
        for segments in passes:
            places, logits, _ = self._pass(segments, wanted, is_whole=is_whole)
            if places:
                yield places, logits

    def follow(
        self, tokens: Sequence[int], *, after: int = 0, layers: Sequence[int] = ()
    ) -> tuple[Float[Tensor, "rows vocabulary"], Float[Tensor, "rows layers dim"]]:
        """Pass the same tokens behind every row, `after` places behind its sequence; returns the
        logits of the last one, and its states in some `layers`. They replace what was passed there
        before."""
        found: dict[int, tuple[Tensor, Tensor]] = {}
        starts = [len(sequence) + after for sequence in self.sequences]
        rest = [Segment(row=row, tokens=tokens, start=start) for row, start in enumerate(starts)]
        last = [range(start + len(tokens) - 1, start + len(tokens)) for start in starts]
        for segments in self._split(rest):
            places, *values = self._pass(segments, last, layers, keeps_start=True)
            found |= {row: pair for (row, _), *pair in zip(places, *values, strict=False)}
        logits, states = zip(*(found[row] for row in range(len(starts))), strict=True)
        return torch.stack(logits), torch.stack(states)

    def _share_prefixes(self, starts: Sequence[list[int]]) -> list[int]:
        """Pass once what all rows start with, and then what neighbors with the same start share;
        returns how many tokens of each row have been passed."""
        rows = range(len(starts))
        passed = [0 for _ in rows]
        if not self.model.continues:
            return passed
        same = [list(some) for _, some in groupby(rows, starts.__getitem__)]
        for runs in [rows], same:
            ends = {run[0]: len(shared_prefix([starts[row] for row in run])) for run in runs}
            first = [
                Segment(row=row, tokens=self.sequences[row][passed[row] : end], start=passed[row])
                for row, end in ends.items()
                if end > passed[row]
            ]
            for segments in self._split(first):
                self._pass(segments, [range(0)] * len(starts))
            for run in runs:
                if (end := ends[run[0]]) > passed[run[0]]:
                    self._copy_start(run, end)
                    passed[run[0] : run[-1] + 1] = [end] * len(run)
        return passed

    def _copy_start(self, run: Sequence[int], length: int) -> None:
        """Copy the first tokens of a run of rows from its first row to the others."""
        others = slice(run[0] + 1, run[-1] + 1)
        cache, record = self.model.cache, self._record
        cache.paste_tokens(others, cache.copy_tokens(run[0], length))
        if record is not None:
            record.paste_tokens(others, record.copy_tokens(run[0], length))

    def _split(self, segments: Sequence[Segment]) -> Iterator[list[Segment]]:
        """In passes of a limited number of tokens."""
        some, left = list[Segment](), self._most
        for segment in segments:
            start, tokens = segment.start, segment.tokens
            while tokens:
                count = left if self.model.continues else len(tokens)
                part, tokens = tokens[:count], tokens[count:]
                some.append(Segment(row=segment.row, tokens=part, start=start))
                start, left = start + len(part), max(0, left - len(part))
                if not left:
                    yield some
                    some, left = [], self._most
        if some:
            yield some

    def _pass(
        self,
        segments: Sequence[Segment],
        wanted: Sequence[range],
        layers: Sequence[int] = (),
        *,
        is_whole: bool = False,
        keeps_start: bool = False,
    ) -> tuple[list[tuple[int, int]], Tensor, Tensor]:
        """The wanted places, their logits, and their states in some layers."""
        ordered, places, keep, first = self.model.in_order(segments), [], [], 0
        for one in ordered:
            inside = range(one.start, one.start + len(one.tokens))
            found = [place for place in wanted[one.row] if place in inside]
            places += [(one.row, place) for place in found]
            keep += [first + place - one.start for place in found]
            first += len(one.tokens)
        planned = self.model.plan(
            ordered,
            keeps_weights=self._keeps_weights,
            is_whole=is_whole,
            keeps_start=keeps_start,
        )
        # Some token's logits are computed even if none are wanted: no model expects an empty index.
        where = to_device(keep or [0], self.model.device)
        keeps_states = self._record is not None or len(layers) > 0
        logits = self.model.run(planned, where, keeps_states=keeps_states)
        if self._record is not None:
            self._record.add(planned)
        self.model.on_passed(first)
        states = [planned.states[layer][where] for layer in layers]
        return places, logits, torch.stack(states, 1) if layers else logits[:, :0]


@torch.inference_mode()
def answer_with_beams(
    decoder: Decoder, prompts: Sequence[Sequence[int]], num_beams: int
) -> tuple[list[Finished], Reduced]:
    """The best beam's answer to each prompt, cut like greedy answers, with its record:
    transformers searches, then the chosen answers are recorded."""
    width, device = max(len(prompt) for prompt in prompts), decoder.device
    rows = [[0] * (width - len(p)) + list(p) for p in prompts]
    mask = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
    ends = decoder.answer_end.end_tokens
    found = _search(
        decoder.model,
        input_ids=torch.tensor(rows, device=device),
        attention_mask=torch.tensor(mask, device=device),
        max_new_tokens=decoder.max_new_tokens,
        num_beams=num_beams,
        do_sample=False,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
    )
    return decoder.read(prompts, [decoder.answer_end.cut(row) for row in found[:, width:].tolist()])


def _search(model: Any, **options: Any) -> torch.Tensor:
    """Generate without the penalties and limits of the model's own generation config: they would
    change the answers without being recorded in the manifest."""
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        return model.generate(**options)
    finally:
        model.generation_config = own


class _LastStates:
    """A listener that keeps the last token's state and the diagonal of every layer."""

    def __init__(self) -> None:
        self.last: list[Tensor] = []
        self.diagonal: list[Tensor] = []

    def on_hidden(self, _layer: int, states: Tensor) -> None:
        self.last.append(states[0, -1].float())

    def on_attention(self, _layer: int, weights: Tensor) -> None:
        self.diagonal.append(weights[0].diagonal(dim1=-2, dim2=-1).float())


def tolerance(decoder: Decoder) -> float:
    """The tolerance for rounding for this model."""
    if getattr(decoder.model, "is_quantized", False):
        return _QUANTIZED_TOLERANCE
    return _TOLERANCE[record_dtype(decoder.model)]


def batching_error(
    decoder: Decoder, prompts: Sequence[Sequence[int]], reporter: Reporter = ignore_event
) -> float:
    """The largest relative difference between the batch's record and plain passes."""
    with decoder.watched(lambda tokens: reporter(WorkAdvanced(count=tokens))):
        answers, reduced = decoder.answer(prompts)
    worst = 0.0
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        tokens = [*prompt, *answer.tokens]
        plain = _LastStates()
        listen_to_whole(decoder.model, decoder.observer, [tokens], plain)
        reporter(WorkAdvanced(count=len(tokens)))
        last = reduced.last_hidden[row].float()
        worst = max(worst, _difference(torch.stack(plain.last), last))
        if plain.diagonal and decoder.shape.attention_layers:
            diagonal = reduced.attention_log_diagonal[row, ..., : len(tokens)].exp()
            worst = max(worst, _difference(torch.stack(plain.diagonal), diagonal))
    return worst


def pick_prompts(prompts: Sequence[Sequence[int]], count: int = 3) -> list[Sequence[int]]:
    """A few prompts of different lengths, none very long."""
    by_length = sorted((p for p in prompts if len(p) <= 512), key=len) or [min(prompts, key=len)]
    return [by_length[i * (len(by_length) - 1) // max(1, count - 1)] for i in range(count)]


def _difference(expected: Tensor, found: Tensor) -> float:
    """Norm of the difference divided by the norm of the expected values, of the worst layer."""
    gap = (expected - found).flatten(1).norm(dim=1)
    scale = expected.flatten(1).norm(dim=1).clamp(min=1e-6)
    value = float((gap / scale).max())
    return value if value == value else float("inf")


def settle_decoder(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    reporter: Reporter,
    *,
    name: str,
    memory: CheckMemory | None = None,
) -> bool:
    """Have the decoder pass tokens in the fastest way whose batches equal plain passes; returns
    whether only prompts of the same length should be batched. Raises InputError for a model
    (`name`) whose values are wrong in every way. What `memory` has is not checked again.
    """
    if (known := memory.recall() if memory else None) is not None:
        while (decoder.uses_graphs and not known.graphs) or decoder.packed.packs > known.packs:
            decoder.simplify()
        reporter(
            Note(
                "batched capture matched single-prompt passes on this machine before (difference "
                f"{known.error:.1e})"
            )
        )
        return not decoder.packed.packs
    some, limit = pick_prompts(prompts), tolerance(decoder)
    # They pass once in the batch and once alone.
    tokens = 2 * len(some) * (max(map(len, some)) + decoder.max_new_tokens)
    step = StepStarted(name="comparing batched with single-prompt passes", parts=tokens)
    with report_work(reporter, step):
        error = _error(decoder, some, reporter)
    while error > limit and (decoder.uses_graphs or decoder.packed.packs):
        note = (
            f"this model's values change in a packed batch (by {error:.1e}): only prompts of equal "
            "length are batched together, which is slower"
        )
        if decoder.uses_graphs:
            note = (
                "this model's steps cannot be replayed as a CUDA graph: continuing without it, "
                "which is slower"
            )
        reporter(Note(note))
        decoder.simplify()
        error = _error(decoder, some)
    if error > limit:
        raise InputError(
            f"{name} cannot be captured accurately: even with one prompt at a time, its hidden "
            f"states differ from a plain forward pass by a relative error of {error:.1e}. Try "
            '`dtype="float32"`.'
        )
    if memory is not None:
        packs = decoder.packed.packs
        memory.keep(Checked(graphs=decoder.uses_graphs, packs=packs, error=error))
    reporter(
        Note(f"check passed: batched capture matches single-prompt passes (difference {error:.1e})")
    )
    return not decoder.packed.packs


def _error(
    decoder: Decoder, prompts: Sequence[Sequence[int]], reporter: Reporter = ignore_event
) -> float:
    """Infinite if the model cannot be passed in this way at all."""
    try:
        return batching_error(decoder, prompts, reporter)
    except PASS_ERRORS as error:
        if not decoder.packed.packs or is_out_of_memory(error):
            raise
        return float("inf")
