"""Score answers that exist already: their tokens pass through the model once, and a detector
assesses what was recorded."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

import torch

from clew.errors import ClewError
from clew.hallucination.capture.check import settle_decoder
from clew.hallucination.capture.decode import Decoder
from clew.hallucination.capture.dialogue import AnswerEnd, shared_prefix
from clew.hallucination.capture.models import LoadedModel, end_tokens, sliding_window
from clew.hallucination.capture.observe import ModelObserver
from clew.hallucination.capture.plan import BatchPlan, make_batches
from clew.hallucination.capture.sample import Sampler
from clew.hallucination.detectors import Detector
from clew.hallucination.detectors.risk import Risk, unavailable
from clew.hallucination.live.assessing import (
    assess,
    assess_tokens,
    read_generation,
    read_maps,
    recorded_columns,
    why_unavailable,
)
from clew.hallucination.live.features import LiveFeatures, PassedAnswer
from clew.hallucination.traces.compact import Reduced
from clew.memory import free_memory, is_out_of_memory
from clew.progress import Event, Reporter, log_event

Result = TypeVar("Result")
# Rows of a batch, and batches that are sorted by length together.
GPU_ROWS, CPU_ROWS = 64, 16
_WINDOW_BATCHES = 8
_BATCH_TOKENS = 256  # slots per row, on average
_CHECK_TOKENS = 2
_CHECK_COLUMNS = frozenset(("last_hidden", "attention_log_diagonal"))


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
        loaded: LoadedModel,
        detector: Detector,
        *,
        rows: int | None = None,
        tokens: bool = False,
        reporter: Reporter = log_event,
        call: Call = call_now,
    ) -> None:
        self.loaded, self.detector, self._call = loaded, detector, call
        self._tokens, self._reporter = tokens, reporter
        on_gpu = loaded.model.device.type == "cuda"
        self._rows = rows or (GPU_ROWS if on_gpu else CPU_ROWS)
        self._generation = read_generation(detector)
        self._draws = "samples" in detector.fields and self._generation.draws > 0
        self._decoder: Decoder | None = None
        self._same_length = False

    @property
    def window(self) -> int:
        """The number of answers that are scored together."""
        return self._rows * _WINDOW_BATCHES

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
            self._call(partial(self._prepare, [answers[row] for row in passed]))
        lengths = [len(answers[row].prompt) + len(answers[row].tokens) for row in passed]
        plan = BatchPlan(
            rows=self._rows, tokens=self._rows * _BATCH_TOKENS, same_length=self._same_length
        )
        for batch in make_batches(lengths, plan, 0):
            rows = [passed[place] for place in batch]
            found = self._call(partial(self._score_batch, [answers[row] for row in rows]))
            for row, one in zip(rows, found, strict=True):
                scored[row] = one
            on_scored(len(rows))
        return [one for one in scored if one is not None]

    def _unscored(self, answer: ToScore) -> Scored | None:
        reason = answer.problem or why_unavailable(answer.tokens, answer.text, answer.stop_reason)
        if reason is None:
            return None
        return Scored(risk=unavailable(reason, method=self.detector.name))

    def _prepare(self, answers: Sequence[ToScore]) -> None:
        """Make the decoder, and pass the tokens that all prompts of a window start with once."""
        if self._decoder is None:
            self._make_decoder([answer.prompt for answer in answers])
        assert self._decoder is not None
        window = sliding_window(self.loaded.model)
        longest = max(len(answer.prompt) + len(answer.tokens) for answer in answers)
        # Padding after a shared prefix would shift what a sliding window sees.
        shares = not self._same_length and (window is None or longest <= window)
        prefix = shared_prefix([answer.prompt for answer in answers]) if shares else []
        if prefix != self._decoder.batch_model.prefix.tokens:
            self._decoder.share_prefix(prefix)

    def _make_decoder(self, prompts: Sequence[Sequence[int]]) -> None:
        """A decoder whose batches were compared with single passes."""
        model, tokenizer = self.loaded
        observer, detector = ModelObserver(model), self.detector

        def make(share: bool) -> Decoder:
            share = share and sliding_window(model) is None
            ends = end_tokens(model, tokenizer)
            return Decoder(
                model=model,
                observer=observer,
                shape=detector.shape,
                basis=detector.basis,
                answer_end=AnswerEnd(tokenizer, self._generation.cut, ends),
                max_new_tokens=self._generation.max_new_tokens if self._draws else _CHECK_TOKENS,
                prefix=shared_prefix(prompts) if share else (),
                columns=_CHECK_COLUMNS,
            )

        notes: list[Event] = []
        name = self.loaded.name or "the model"
        decoder, self._same_length = settle_decoder(make, prompts, notes.append, name=name)
        for note in notes if self._same_length else ():
            self._reporter(note)
        decoder.columns = recorded_columns(detector, tokens=self._tokens)
        decoder.share_prefix([])
        self._decoder = decoder

    def _score_batch(self, answers: Sequence[ToScore]) -> list[Scored]:
        """Score a batch; if it does not fit in device memory, in halves."""
        try:
            return self._pass(answers)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(answers) == 1:
                count = len(answers[0].prompt) + len(answers[0].tokens)
                raise ClewError(
                    f"an answer of {count:,} tokens with its prompt does not fit in the memory of "
                    f"{self.loaded.model.device}, even alone. Use a device with more memory."
                ) from error
        free_memory()
        half = -(-len(answers) // 2)
        return [*self._score_batch(answers[:half]), *self._score_batch(answers[half:])]

    @torch.inference_mode()
    def _pass(self, answers: Sequence[ToScore]) -> list[Scored]:
        assert self._decoder is not None
        numbers, record = self._decoder.record(
            [answer.prompt for answer in answers], [answer.tokens for answer in answers]
        )
        drawn = self._draw(answers)
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
        return self._assess(record, passed)

    def _assess(self, record: Reduced, passed: Sequence[PassedAnswer]) -> list[Scored]:
        pass_maps = partial(read_maps, self.loaded)
        features = LiveFeatures(record, passed, self.detector.sample_shape, pass_maps=pass_maps)
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

    def _draw(self, answers: Sequence[ToScore]) -> Sequence[list[str] | None]:
        """The texts of further answers to each question, if the detector reads them."""
        if not self._draws:
            return [None] * len(answers)
        assert self._decoder is not None
        made = self._generation
        sampler = Sampler(self._decoder, count=made.draws, temperature=made.draw_temperature)
        plan = BatchPlan(rows=self._rows, tokens=self._rows * _BATCH_TOKENS)
        drawn = sampler.sample([a.prompt for a in answers], [a.name for a in answers], plan)
        decode = self.loaded.tokenizer.batch_decode
        return [[text.strip() for text in decode(one, skip_special_tokens=True)] for one in drawn]
