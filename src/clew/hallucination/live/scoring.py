"""Score answers: a detector assesses what was recorded of their tokens. Those that exist already
are passed through the model once."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from itertools import islice, pairwise
from typing import Any, TypeVar

import numpy as np
import torch

from clew.base.errors import InputError
from clew.base.memory import free_memory, is_out_of_memory
from clew.base.progress import Event, Note, Reporter, log_event
from clew.base.typed_json import read_as
from clew.hallucination.capture.config import Generation
from clew.hallucination.detectors import Detector
from clew.hallucination.detectors.data import Risk, unavailable
from clew.hallucination.live.features import SPLIT, LiveFeatures, PassedAnswer, needed_columns
from clew.hallucination.llm.decoder import Decoder, settle_decoder
from clew.hallucination.llm.memory import BatchPlan, make_batches
from clew.hallucination.llm.models import LoadedModel, context_tokens
from clew.hallucination.llm.observe import ModelObserver, full_columns, record_fully
from clew.hallucination.llm.passes import PackedModel
from clew.hallucination.llm.recording import Recording
from clew.hallucination.llm.self_evaluation import (
    Entailment,
    SelfChecks,
    SelfEvaluation,
)
from clew.hallucination.traces.compact import Reduced
from clew.hallucination.traces.schema import ENTAILMENT, ENTAILMENT_KEY, EVALUATION, EVALUATION_KEY

# Rows of a batch, and batches that are sorted by length together.
GPU_ROWS, CPU_ROWS = 64, 16
WINDOW_BATCHES = 8
_BATCH_TOKENS = 256  # slots per row, on average
_CHECK_COLUMNS = frozenset(("last_hidden", "attention_log_diagonal"))
_CHECK_TOKENS = 2
_LONGEST_CHECKED = 256
_MOST_TOKENS, _MOST_DRAWS = 1 << 16, 100
_CUT_OFF = "the answer was cut off at its maximum length, so what it would have said is unknown"
_NOT_COMPARED = "the detector compares answers to a question, but none were drawn for this one"
_PLAN = BatchPlan(rows=64, tokens=1 << 14)


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


class GivenPasses:
    """One decoder for all scorers of a session. Call its methods only while nothing else uses the
    model. `same_length` says, once settled, whether only answers of equal length may be passed
    together."""

    def __init__(
        self, loaded: LoadedModel, detector: Detector, reporter: Reporter = log_event
    ) -> None:
        self.loaded, self.detector, self._reporter = loaded, detector, reporter
        self.generation = read_generation(detector)
        self.draws = "samples" in detector.fields and self.generation.draws > 0
        self.same_length = False
        self._decoder: Decoder | None = None

    def settle(self, prompt: Sequence[int]) -> None:
        """Make the decoder, and compare its batches with single passes over parts of a prompt."""
        if self._decoder is not None:
            return
        prompt = prompt[:_LONGEST_CHECKED]
        parts = [prompt[: max(1, len(prompt) * part // 3)] for part in (1, 2, 3)]
        events: list[Event] = []
        decoder = Decoder(
            self.loaded,
            self._recording(_CHECK_COLUMNS),
            cut=self.generation.cut,
            max_new_tokens=self.generation.max_new_tokens if self.draws else _CHECK_TOKENS,
        )
        name = self.loaded.name or "the model"
        self.same_length = settle_decoder(decoder, parts, events.append, name=name)
        for event in events if self.same_length else ():
            if isinstance(event, Note):
                self._reporter(event)
        self._decoder = decoder

    def decoder(self, columns: frozenset[str]) -> Decoder:
        """The decoder that records these columns of given answers."""
        assert self._decoder is not None
        self._decoder.recording = self._recording(columns)
        return self._decoder

    def _recording(self, columns: frozenset[str]) -> Recording:
        return Recording(shape=self.detector.shape, basis=self.detector.basis, columns=columns)


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
        call: Callable[[Callable[[], Any]], Any] = lambda function: function(),
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
        for batch in self._make_batches([answers[row] for row in passed]):
            rows = [passed[place] for place in batch]
            some = [answers[row] for row in rows]
            found = self._call(partial(self._score_batch, some))
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

    def _score_batch(self, answers: Sequence[ToScore]) -> list[Scored]:
        """Score a batch; if it does not fit in device memory, in halves."""
        try:
            return self._pass(answers)
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
        return [*self._score_batch(answers[:half]), *self._score_batch(answers[half:])]

    @torch.inference_mode()
    def _pass(self, answers: Sequence[ToScore]) -> list[Scored]:
        decoder = self._passes.decoder(self._columns)
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
        evaluate = partial(self._evaluation.evaluate, model=decoder.packed, plan=self._batch_plan)
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
        drawn = decoder.draw(
            [answer.prompt for answer in answers],
            [answer.name for answer in answers],
            self._batch_plan,
            count=made.draws,
            temperature=made.draw_temperature,
        )
        return [[one.text.strip() for one in some] for some in drawn]


def why_unavailable(tokens: Sequence[int], text: str, stop_reason: str) -> str | None:
    """Why an answer is not checked, whatever a detector says of it."""
    if stop_reason == "canceled":
        return "the answer was canceled before its end"
    if not tokens or not text.strip():
        return "the answer is empty"
    return _CUT_OFF if stop_reason == "length" else None


def read_generation(detector: Detector) -> Generation:
    """How the detector's training answers were generated; defaults for what it does not say.
    Raises InputError for values that cannot be used."""
    # As manifests name them.
    names = {"samples": "draws", "sample_temperature": "draw_temperature"}
    made = {names.get(name, name): value for name, value in detector.generation.items()}
    known = {field.name for field in fields(Generation)} & made.keys()
    usual = {"max_new_tokens": 32, "num_beams": 1, "cut": "none", "draws": 0}
    try:
        found = read_as(
            Generation,
            {**usual, "draw_temperature": 1.0, **{name: made[name] for name in known}},
            "generation",
        )
        if not (1 <= found.max_new_tokens <= _MOST_TOKENS and 0 <= found.draws <= _MOST_DRAWS):
            raise ValueError(f"{found.max_new_tokens} tokens and {found.draws} draws")
    except ValueError as error:
        raise InputError(
            f"the detector {detector.name} does not say how to generate answers ({error}): make it "
            "again with this version of clew."
        ) from None
    return found


def recorded_columns(detector: Detector, *, tokens: bool = False) -> frozenset[str]:
    """The trace columns that assessing an answer needs; with `tokens`, also those of its tokens."""
    nodes = {"nodes"} if tokens and detector.tokens is not None else set()
    return needed_columns(detector.fields, detector.samples) | nodes


def assess(detector: Detector, features: LiveFeatures) -> list[Risk]:
    """The risk of every answer; those that cannot be checked are unavailable with the reason."""
    found = detector.assess(features.drop_unusable())
    reasons = [why_unavailable(a.tokens, a.text, a.stop_reason) for a in features.answers]
    if "samples" in detector.fields:
        for row, answer in enumerate(features.answers):
            reasons[row] = reasons[row] or (None if answer.samples else _NOT_COMPARED)
    for row, reason in features.unusable.items():
        reasons[row] = reasons[row] or f"the answer cannot be scored: {reason}"
    return [
        risk if reason is None else unavailable(reason, method=detector.name)
        for risk, reason in zip(found, reasons, strict=True)
    ]


def assess_tokens(detector: Detector, features: LiveFeatures) -> Sequence[tuple[float, ...] | None]:
    """The risk of every token of every answer; None without a token probe."""
    probe = detector.tokens
    if probe is None:
        return [None] * len(features.answers)
    nodes = features.token_nodes(probe.layers)
    logprobs, entropies = (
        torch.cat(features.read(name, SPLIT)).to(nodes.device)
        for name in ("token_logprobs", "token_entropies")
    )
    risks = probe.score(nodes, logprobs, entropies).tolist()
    ends = np.cumsum([0, *(len(answer.tokens) for answer in features.answers)]).tolist()
    return [tuple(risks[start:end]) for start, end in pairwise(ends)]


def read_maps(loaded: LoadedModel, sequences: Sequence[Sequence[int]]) -> np.ndarray:
    """The full attention maps of sequences, flat, as stored."""
    record = record_fully(loaded.model, ModelObserver(loaded.model), sequences)
    return full_columns(record)["attentions"]


Asked = TypeVar("Asked")


class LiveEvaluation:
    """What a detector reads of the model's opinion; `fields` is empty if it reads nothing of it.
    Call `evaluate` only while nothing else uses the model."""

    def __init__(self, loaded: LoadedModel, detector: Detector) -> None:
        self.fields = detector.fields & {*EVALUATION}
        self._loaded, self._detector = loaded, detector

    @property
    def room(self) -> int:
        """The tokens that it needs behind an answer."""
        return self._checks.room if self.fields else 0

    def evaluate(
        self,
        answers: Sequence[PassedAnswer],
        model: PackedModel | None = None,
        plan: BatchPlan = _PLAN,
    ) -> dict[str, np.ndarray]:
        """The columns of `fields`, one row per answer; NaN for one that the model has no room to
        be asked about. `model` is one whose batches were compared with single passes."""
        model = model or self._plain_model
        sequences = [[*answer.prompt, *answer.tokens] for answer in answers]
        # One without drawn answers gets no risk, whatever is said of it.
        samples = [answer.samples or [""] * self._checks.draws for answer in answers]
        questions = [answer.question for answer in answers]
        found = self._checks.evaluate(model, sequences, plan)
        return found | self._checks.compare(model, questions, samples, plan)

    @cached_property
    def _checks(self) -> SelfChecks:
        read, evaluation, entailment = self._read, None, None
        if self.fields - {ENTAILMENT}:
            layers = self._detector.shape.layers
            evaluation = read(EVALUATION_KEY, partial(SelfEvaluation.read, num_layers=layers))
        if ENTAILMENT in self.fields:
            entailment = read(ENTAILMENT_KEY, Entailment.read)
        return SelfChecks(
            self._loaded,
            chat=self._detector.prompt.chat,
            evaluation=evaluation,
            entailment=entailment,
            draws=read_generation(self._detector).draws,
        )

    def _read(self, key: str, read: Callable[[Mapping[str, Any]], Asked]) -> Asked:
        """How the model was asked, as the detector says. Raises InputError if it does not."""
        try:
            return read(read_as(dict[str, Any], self._detector.kept.capture.get(key), key))
        except ValueError as error:
            raise InputError(
                f"the detector {self._detector.name} does not say what the model was asked about "
                f"its answers ({error}): make it again with this version of clew."
            ) from None

    @cached_property
    def _plain_model(self) -> PackedModel:
        return PackedModel(self._loaded.model)
