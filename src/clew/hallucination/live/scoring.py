"""Score answers that exist already: their tokens pass through the model once, and a detector
assesses what was recorded."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

import torch

from clew.base.memory import free_memory, is_out_of_memory
from clew.hallucination.capture.decode import Decoder
from clew.hallucination.capture.models import context_tokens
from clew.hallucination.capture.plan import BatchPlan, make_batches
from clew.hallucination.capture.sample import Sampler
from clew.hallucination.detectors.risk import Risk, unavailable
from clew.hallucination.live.assessing import (
    assess,
    assess_tokens,
    read_maps,
    recorded_columns,
    why_unavailable,
)
from clew.hallucination.live.evaluating import LiveEvaluation
from clew.hallucination.live.features import LiveFeatures, PassedAnswer
from clew.hallucination.live.passing import GivenPasses
from clew.hallucination.traces.compact import Reduced

Result = TypeVar("Result")
# Rows of a batch, and batches that are sorted by length together.
GPU_ROWS, CPU_ROWS = 64, 16
WINDOW_BATCHES = 8
_BATCH_TOKENS = 256  # slots per row, on average


@dataclass(frozen=True, kw_only=True)
class ToScore:
    """An answer to score: the token ids of its prompt and of the answer, and their texts. `problem`
    says why it cannot be scored, if so; `name` seeds the answers that are drawn for it."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    question: str = ""
    text: str = ""
    stop_reason: str = "end"
    name: str = ""
    problem: str | None = None

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.tokens)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The risk of an answer, and of each of its tokens if the detector has a token probe."""

    risk: Risk
    logprobs: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    token_risks: tuple[float, ...] | None = None


class Call(Protocol):
    """Calls a function while nothing else uses the model."""

    def __call__(self, function: Callable[[], Result], /) -> Result: ...


def call_now(function: Callable[[], Result], /) -> Result:
    return function()


class AnswerScorer:
    """Scores given answers in batches, in constant memory. Batches are formed within a window of
    consecutive answers, so that the same answers give the same batches in every run. With `tokens`,
    the risk of every token is computed as well. Whatever uses the model is passed to `call`."""

    def __init__(
        self,
        passes: GivenPasses,
        *,
        rows: int | None = None,
        tokens: bool = False,
        call: Call = call_now,
    ) -> None:
        self.loaded, self.detector = passes.loaded, passes.detector
        self._passes, self._call, self._tokens = passes, call, tokens
        on_gpu = self.loaded.device.type == "cuda"
        self._rows = rows or (GPU_ROWS if on_gpu else CPU_ROWS)
        self._columns = recorded_columns(self.detector, tokens=tokens)
        self._evaluation = LiveEvaluation(self.loaded, self.detector)
        self._max_tokens = context_tokens(self.loaded.model) - self._evaluation.room

    @property
    def window(self) -> int:
        """The number of answers that are scored together."""
        return self._rows * WINDOW_BATCHES

    def score(self, answers: Iterable[ToScore]) -> Iterator[Scored]:
        """The scores in the order of the answers, a window at a time."""
        rest = iter(answers)
        while window := list(islice(rest, self.window)):
            yield from self.score_window(window)

    def score_window(
        self, answers: Sequence[ToScore], on_scored: Callable[[int], None] = lambda _: None
    ) -> list[Scored]:
        """The scores of at most a window of answers; `on_scored` is called with the number of
        answers of each finished batch."""
        scored = [self._unscored(answer) for answer in answers]
        # An answer that is not checked is not passed either.
        passed = [row for row, one in enumerate(scored) if one is None]
        on_scored(len(answers) - len(passed))
        if passed:
            self._call(partial(self._passes.settle, answers[passed[0]].prompt))
            prefix = self._passes.shared_prefix(
                [(answers[row].prompt, answers[row].tokens) for row in passed]
            )
        for batch in self._make_batches([answers[row] for row in passed]):
            rows = [passed[place] for place in batch]
            some = [answers[row] for row in rows]
            found = self._call(partial(self._score_batch, some, prefix))
            for row, one in zip(rows, found, strict=True):
                scored[row] = one
            on_scored(len(rows))
        return [one for one in scored if one is not None]

    def _make_batches(self, answers: Sequence[ToScore]) -> list[list[int]]:
        return make_batches([answer.length for answer in answers], self._batch_plan, 0)

    @property
    def _batch_plan(self) -> BatchPlan:
        same_length = self._passes.same_length
        return BatchPlan(
            rows=self._rows, tokens=self._rows * _BATCH_TOKENS, same_length=same_length
        )

    def _unscored(self, answer: ToScore) -> Scored | None:
        reason = answer.problem or why_unavailable(answer.tokens, answer.text, answer.stop_reason)
        if reason is None and answer.length > self._max_tokens:
            reason = (
                f"prompt and answer have at least {answer.length:,} tokens, but the model's limit "
                f"is {self._max_tokens:,}"
            )
        if reason is None:
            return None
        return Scored(risk=unavailable(reason, method=self.detector.name))

    def _score_batch(self, answers: Sequence[ToScore], prefix: list[int]) -> list[Scored]:
        """Score a batch; if it does not fit in device memory, in halves."""
        try:
            return self._pass(answers, prefix)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(answers) == 1:
                reason = (
                    f"the answer has {answers[0].length:,} tokens with its prompt, which do not "
                    f"fit in the memory of {self.loaded.device}"
                )
                return [Scored(risk=unavailable(reason, method=self.detector.name))]
        free_memory()
        half = -(-len(answers) // 2)
        return [
            *self._score_batch(answers[:half], prefix),
            *self._score_batch(answers[half:], prefix),
        ]

    @torch.inference_mode()
    def _pass(self, answers: Sequence[ToScore], prefix: list[int]) -> list[Scored]:
        decoder = self._passes.decoder(prefix, self._columns)
        numbers, record = decoder.record(
            [answer.prompt for answer in answers], [answer.tokens for answer in answers]
        )
        drawn = self._draw(decoder, answers)
        passed = [
            PassedAnswer(
                prompt=answer.prompt,
                tokens=answer.tokens,
                logprobs=logprobs,
                entropies=entropies,
                stop_reason=answer.stop_reason,
                question=answer.question,
                text=answer.text,
                samples=samples,
            )
            for answer, (logprobs, entropies), samples in zip(answers, numbers, drawn, strict=True)
        ]
        return self._assess(record, passed, decoder)

    def _assess(
        self, record: Reduced, passed: Sequence[PassedAnswer], decoder: Decoder
    ) -> list[Scored]:
        evaluate = partial(
            self._evaluation.evaluate, model=decoder.batch_model, plan=self._batch_plan
        )
        features = LiveFeatures(
            record,
            passed,
            self.detector.sample_shape,
            pass_maps=partial(read_maps, self.loaded),
            evaluate=evaluate if self._evaluation.fields else None,
        )
        risks = assess(self.detector, features)
        by_token: Sequence[tuple[float, ...] | None] = [None] * len(passed)
        if self._tokens:
            by_token = assess_tokens(self.detector, features)
        return [
            Scored(
                risk=risk,
                logprobs=tuple(answer.logprobs),
                entropies=tuple(answer.entropies),
                token_risks=tokens,
            )
            for answer, risk, tokens in zip(passed, risks, by_token, strict=True)
        ]

    def _draw(self, decoder: Decoder, answers: Sequence[ToScore]) -> Sequence[list[str] | None]:
        """The texts of further answers to each question, if the detector reads them."""
        if not self._passes.draws:
            return [None] * len(answers)
        made = self._passes.generation
        sampler = Sampler(decoder, count=made.draws, temperature=made.draw_temperature)
        plan = BatchPlan(rows=self._rows, tokens=self._rows * _BATCH_TOKENS)
        drawn = sampler.sample([a.prompt for a in answers], [a.name for a in answers], plan)
        decode = self.loaded.tokenizer.batch_decode
        return [[text.strip() for text in decode(one, skip_special_tokens=True)] for one in drawn]
