"""Score answers: a detector assesses what was recorded of their tokens. Those that exist already
are passed through the model once."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import chain, islice, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float32

from clew.base.cpu import one_numpy_thread
from clew.base.errors import InputError
from clew.base.memory import none_if_out_of_memory, run_in_halves
from clew.base.progress import Event, Note, Reporter, log_event
from clew.base.typed_json import read_as
from clew.hallucination.capture.config import Generation
from clew.hallucination.detectors import Detector
from clew.hallucination.detectors.adaptation import VECTOR_FIELDS
from clew.hallucination.detectors.data import Risk, unavailable
from clew.hallucination.live.features import SPLIT, Answer, LiveFeatures, needed_columns
from clew.hallucination.llm.decoder import Decoder, Recorded, settle_decoder
from clew.hallucination.llm.memory import BatchPlan, make_batches
from clew.hallucination.llm.models import LoadedModel, context_tokens
from clew.hallucination.llm.observe import ModelObserver, full_columns, record_fully
from clew.hallucination.llm.passes import PackedModel
from clew.hallucination.llm.recording import Recording
from clew.hallucination.llm.self_evaluation import Entailment, SelfChecks, SelfEvaluation
from clew.hallucination.traces.schema import ENTAILMENT, ENTAILMENT_KEY, EVALUATION, EVALUATION_KEY

# Rows of a batch, and batches that are sorted by length together.
GPU_ROWS, CPU_ROWS = 64, 16
WINDOW_BATCHES = 8
_BATCH_TOKENS = 256  # slots per row, on average
_CHECK_COLUMNS = frozenset(("last_hidden", "attention_log_diagonal"))
_CHECK_TOKENS = 2
_LONGEST_CHECKED = 256
_MOST_TOKENS, _MOST_DRAWS = 1 << 16, 100
_NOT_COMPARED = "the detector compares answers to a question, but none were drawn for this one"
_PLAN = BatchPlan(rows=64, tokens=1 << 14)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The risk of an answer, and of each of its tokens if the detector has a token probe; `vector`
    is what adaptation needs of it, if asked for."""

    risk: Risk
    logprobs: tuple[float, ...] = ()
    token_risks: tuple[float, ...] | None = None
    vector: Float32[np.ndarray, " numbers"] | None = None


class AnswerScorer:
    """Scores answers that exist already in batches, in constant memory. Batches are formed within a
    window of consecutive answers, so that the same answers give the same batches in every run. With
    `tokens`, the risk of every token is computed as well, with `vectors`, what adaptation needs.
    Whatever uses the model is passed to `call`."""

    def __init__(
        self,
        loaded: LoadedModel,
        detector: Detector,
        *,
        rows: int | None = None,
        tokens: bool = False,
        vectors: bool = False,
        reporter: Reporter = log_event,
        call: Callable[[Callable[[], Any]], Any] = lambda function: function(),
    ) -> None:
        self.loaded, self.detector = loaded, detector
        self._call, self._tokens, self._reporter = call, tokens, reporter
        self._vectors = vectors
        on_gpu = loaded.device.type == "cuda"
        # Where answers are assessed: on the stream of the passes, the next one would be waited for.
        self._aside = torch.cuda.Stream(loaded.device) if on_gpu else None
        self._rows = rows or (GPU_ROWS if on_gpu else CPU_ROWS)
        self._plan = BatchPlan(rows=self._rows, tokens=self._rows * _BATCH_TOKENS)
        self._generation = read_generation(detector)
        self._draws = "samples" in detector.fields and self._generation.draws > 0
        self._evaluation = LiveEvaluation(loaded, detector)
        self._max_tokens = context_tokens(loaded.model) - self._evaluation.extra_tokens
        self._decoder: Decoder | None = None

    def _settle(self, prompt: Sequence[int]) -> None:
        """Make the decoder, and compare its batches with single passes over parts of a prompt."""
        if self._decoder is not None:
            return
        prompt = prompt[:_LONGEST_CHECKED]
        parts = [prompt[: max(1, len(prompt) * part // 3)] for part in (1, 2, 3)]
        notes: list[Event] = []
        shape, basis, made = self.detector.shape, self.detector.basis, self._generation
        decoder = Decoder(
            self.loaded,
            Recording(shape=shape, basis=basis, columns=_CHECK_COLUMNS),
            cut=made.cut,
            max_new_tokens=made.max_new_tokens if self._draws else _CHECK_TOKENS,
        )
        name = self.loaded.name or "the model"
        same_length = settle_decoder(decoder, parts, notes.append, name=name)
        for note in notes if same_length else ():
            if isinstance(note, Note):
                self._reporter(note)
        self._plan = replace(self._plan, same_length=same_length)
        columns = recorded_columns(self.detector, tokens=self._tokens, vectors=self._vectors)
        decoder.recording = Recording(shape=shape, basis=basis, columns=columns)
        self._decoder = decoder

    @property
    def window(self) -> int:
        """The number of answers that are scored together."""
        return self._rows * WINDOW_BATCHES

    def score(self, answers: Iterable[Answer]) -> Iterator[Scored]:
        """The scores in the order of the answers, a window at a time."""
        rest = iter(answers)
        while window := list(islice(rest, self.window)):
            yield from self.score_window(window)

    def score_window(
        self, answers: Sequence[Answer], on_scored: Callable[[int], None] = lambda _: None
    ) -> list[Scored]:
        """The scores of at most a window of answers; `on_scored` is called with the number of
        answers of each finished batch."""
        scored = [self._unscored(answer) for answer in answers]
        # An answer that is not checked is not passed either.
        passed = [row for row, one in enumerate(scored) if one is None]
        on_scored(len(answers) - len(passed))
        if passed:
            self._call(partial(self._settle, answers[passed[0]].prompt))
        lengths = [answers[row].length for row in passed]
        prompts = [answers[row].prompt for row in passed]
        begun: deque[tuple[list[int], Callable[[], list[Scored]]]] = deque()

        def finish(leaving: int) -> None:
            while len(begun) > leaving:
                rows, wait = begun.popleft()
                for row, one in zip(rows, self._call(wait), strict=True):
                    scored[row] = one
                on_scored(len(rows))

        # A GPU passes a batch while the one before it is scored.
        ahead = 1 if self.loaded.device.type == "cuda" else 0
        for batch in make_batches(lengths, self._plan, 0, prompts):
            rows = [passed[place] for place in batch]
            begun.append((rows, self._call(partial(self._begin, [answers[r] for r in rows]))))
            finish(ahead)
        finish(0)
        return [one for one in scored if one is not None]

    def _unscored(self, answer: Answer) -> Scored | None:
        reason = answer.why_unavailable
        if reason is None and answer.length > self._max_tokens:
            reason = (
                f"prompt and answer have at least {answer.length:,} tokens, but the model's limit "
                f"is {self._max_tokens:,}"
            )
        return None if reason is None else self._refuse(reason)

    def _refuse(self, reason: str) -> Scored:
        return Scored(risk=unavailable(reason, method=self.detector.name))

    def _begin(self, answers: Sequence[Answer]) -> Callable[[], list[Scored]]:
        """Pass a batch; if it does not fit in device memory, in halves, which are scored at
        once."""
        begun = none_if_out_of_memory(partial(self._pass, answers))

        def finish() -> list[Scored]:
            found = begun and none_if_out_of_memory(begun)
            return found or self._score_in_halves(answers)

        return finish

    def _score_in_halves(self, answers: Sequence[Answer]) -> list[Scored]:
        return [*chain(*run_in_halves(lambda some: self._pass(some)(), answers, self._give_up))]

    def _give_up(self, answers: Sequence[Answer], _: Exception) -> list[Scored] | None:
        if len(answers) > 1:
            return None
        reason = (
            f"the answer has {answers[0].length:,} tokens with its prompt, which do not fit in the "
            f"memory of {self.loaded.device}"
        )
        return [self._refuse(reason)]

    def _pass(self, answers: Sequence[Answer]) -> Callable[[], list[Scored]]:
        """Pass answers; the returned function scores them."""
        assert (decoder := self._decoder) is not None  # settled before the first batch
        recorded = decoder.start_record(
            [answer.prompt for answer in answers], [answer.tokens for answer in answers]
        )
        assess = partial(self._assess, decoder, answers, recorded, self._draw(decoder, answers))
        if self._aside is None:
            return assess
        passed = torch.cuda.Event()
        passed.record()
        return partial(self._assess_aside, self._aside, passed, assess)

    def _assess_aside(
        self, aside: torch.cuda.Stream, passed: torch.cuda.Event, assess: Callable[[], list[Scored]]
    ) -> list[Scored]:
        with torch.cuda.stream(aside):
            aside.wait_event(passed)
            scored = assess()
        # What was recorded may be freed now: nothing reads it any more.
        aside.synchronize()
        return scored

    @torch.inference_mode()
    def _assess(
        self,
        decoder: Decoder,
        answers: Sequence[Answer],
        recorded: Callable[[], Recorded],
        drawn: Sequence[list[str] | None],
    ) -> list[Scored]:
        numbers, record = recorded()
        passed = [
            replace(answer, logprobs=logprobs, entropies=entropies, samples=samples)
            for answer, (logprobs, entropies), samples in zip(answers, numbers, drawn, strict=True)
        ]
        evaluate = partial(self._evaluation.evaluate, model=decoder.packed, plan=self._plan)
        features = LiveFeatures(
            record,
            passed,
            self.detector.sample_shape,
            pass_maps=partial(read_maps, self.loaded),
            evaluate=evaluate if self._evaluation.fields else None,
        )
        risks, vectors = assess(self.detector, features, vectors=self._vectors)
        by_token: Sequence[tuple[float, ...] | None] = [None] * len(passed)
        if self._tokens:
            by_token = assess_tokens(self.detector, features)
        return [
            Scored(risk=risk, logprobs=tuple(one.logprobs), token_risks=tokens, vector=vector)
            for one, risk, tokens, vector in zip(passed, risks, by_token, vectors, strict=True)
        ]

    def _draw(self, decoder: Decoder, answers: Sequence[Answer]) -> Sequence[list[str] | None]:
        """The texts of further answers to each question, if the detector reads them."""
        if not self._draws:
            return [None] * len(answers)
        made = self._generation
        drawn = decoder.draw(
            [answer.prompt for answer in answers],
            [answer.name for answer in answers],
            self._plan,
            count=made.draws,
            temperature=made.draw_temperature,
        )
        return [[one.text.strip() for one in some] for some in drawn]


def read_generation(detector: Detector) -> Generation:
    """How the detector's training answers were generated; defaults for what it does not say.
    Raises InputError for values that cannot be used."""
    # As manifests name them.
    names = {"samples": "draws", "sample_temperature": "draw_temperature"}
    made = {names.get(name, name): value for name, value in detector.generation.items()}
    known = {field.name for field in fields(Generation)} & made.keys()
    try:
        found = read_as(
            Generation, {"cut": "none", **{name: made[name] for name in known}}, "generation"
        )
        if not (1 <= found.max_new_tokens <= _MOST_TOKENS and 0 <= found.draws <= _MOST_DRAWS):
            raise ValueError(f"{found.max_new_tokens} tokens and {found.draws} draws")
    except ValueError as error:
        raise InputError(
            f"the detector {detector.name} does not say how to generate answers ({error}): make it "
            "again with this version of clew."
        ) from None
    return found


def recorded_columns(
    detector: Detector, *, tokens: bool = False, vectors: bool = False
) -> frozenset[str]:
    """The trace columns that assessing an answer needs; with `tokens`, also those of its tokens,
    with `vectors`, those of `read_vectors`."""
    nodes = {"nodes"} if tokens and detector.tokens is not None else set()
    names = detector.fields | (VECTOR_FIELDS if vectors else frozenset())
    return needed_columns(names, detector.samples) | nodes


def assess(
    detector: Detector, features: LiveFeatures, *, vectors: bool = False
) -> tuple[list[Risk], Sequence[Float32[np.ndarray, " numbers"] | None]]:
    """The risk of every answer; those that cannot be checked are unavailable with the reason. With
    `vectors`, also what adaptation needs of each, familiar or not, if the columns were recorded for
    it; None for one that cannot be checked. The method scores them once."""
    reasons = _find_reasons(detector, features)
    with one_numpy_thread():
        usable = features.drop_unusable()
        read = detector.read_vectors(usable) if vectors else None
        found = detector.assess(usable, vectors=read)
    risks = [
        risk if reason is None else unavailable(reason, method=detector.name)
        for risk, reason in zip(found, reasons, strict=True)
    ]
    if read is None:
        return risks, [None] * len(risks)
    checked = (reason is None for reason in reasons)
    return risks, [
        vector if is_checked and np.isfinite(vector).all() else None
        for vector, is_checked in zip(read, checked, strict=True)
    ]


def _find_reasons(detector: Detector, features: LiveFeatures) -> list[str | None]:
    """Why answers cannot be checked; None for those that can."""
    reasons = [answer.why_unavailable for answer in features.answers]
    if "samples" in detector.fields:
        for row, answer in enumerate(features.answers):
            reasons[row] = reasons[row] or (None if answer.samples else _NOT_COMPARED)
    for row, reason in features.unusable.items():
        reasons[row] = reasons[row] or f"the answer cannot be scored: {reason}"
    return reasons


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
    def extra_tokens(self) -> int:
        """The tokens that it needs behind an answer."""
        return self._checks.extra_tokens if self.fields else 0

    def evaluate(
        self, answers: Sequence[Answer], model: PackedModel | None = None, plan: BatchPlan = _PLAN
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
