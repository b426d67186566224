"""A fitted detector: what it was fitted for, the risk that it assigns to answers, and when it must
not assign one."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from clew.base.errors import InputError
from clew.base.settings import find_differences
from clew.base.typed_json import Bounds, read_as
from clew.hallucination.detectors.adaptation import (
    VECTOR_FIELDS,
    Adaptation,
    Vectors,
    build_vectors,
    start_linear,
)
from clew.hallucination.detectors.data import (
    LIVE,
    STATE_FIELDS,
    BlankAnswer,
    HostAnswers,
    LiveData,
    Promise,
    Risk,
    judge,
    unavailable,
)
from clew.hallucination.detectors.probes.baselines import EachAnswer
from clew.hallucination.detectors.probes.fitting import Linear, to_numpy
from clew.hallucination.detectors.probes.gated import Distance
from clew.hallucination.detectors.probes.method import Features, Scorer
from clew.hallucination.detectors.registry import FORMS, NETWORKS
from clew.hallucination.detectors.tokens import TokenProbe
from clew.hallucination.llm.prompts import CHAT_TEMPLATE, Prompt
from clew.hallucination.samples.datasets import SampleKind
from clew.hallucination.samples.source import LAPLACIAN_TOP, SampleShape, SourceShape
from clew.hallucination.traces.compact import Basis
from clew.hallucination.traces.schema import (
    ANSWERS_KEY,
    EIGENVALUES,
    ENTAILMENT_KEY,
    EVALUATION_KEY,
    EvaluationShape,
    TraceShape,
)
from clew.metrics.calibration import PlattScale

TOKENS = "token_logprobs"
Part = TypeVar("Part")
Probability = Annotated[float, Bounds(least=0, most=1)]
_Count = Annotated[int, Bounds(least=0, most=1000)]
# As close to 0 and 1 as a float32 can represent.
_SURE = 1e-7
_UNFINISHED = {
    "length": "the answer was cut off at the limit of tokens",
    "canceled": "the answer was canceled before its end",
}


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """Calibrated token probabilities, for answers unlike the training data: they get no verdict, so
    `threshold` is only read and written."""

    scorer: EachAnswer
    calibration: PlattScale
    threshold: Probability


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a detector was fitted on. `generation`, `capture` and `preprocess` are the settings of
    `clew extract` and `clew preprocess`; `results` is the method's row of results.json;
    `calibrated` has the figures of `clew calibrate`, if it changed the detector, or its promise;
    `adapted` has those of `clew adapt`."""

    model: dict[str, Any]
    prompt: Prompt
    shape: TraceShape
    generation: dict[str, Any] = field(default_factory=dict)
    capture: dict[str, Any] = field(default_factory=dict)
    preprocess: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    calibrated: dict[str, Any] = field(default_factory=dict)
    adapted: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, repr=False)
class Detector:
    """A hallucination detector: a probe (`scorer`) or a `network`, in eval mode, with `config`, its
    hyperparameters. An answer whose risk is above `threshold` has a high risk.

    One that `clew compare` or `clew train` kept in a folder is calibrated and has an `origin`; a
    best.safetensors of `clew train` alone has only its network, whose risks are not calibrated.
    `metrics` are those of the test split (of the validation split without an origin). With an
    `adaptation` to other answers, the method's score is only a part of the detector's. `folder` is
    where it was loaded from.
    """

    name: str
    title: str
    threshold: float
    metrics: dict[str, Any]
    family: str = "network"
    scorer: Scorer | None = None
    network: nn.Module = field(default_factory=nn.Identity)
    config: Any = None
    calibration: PlattScale | None = None
    fallback: Fallback | None = None
    distance: Distance | None = None
    basis: Basis | None = None
    tokens: TokenProbe | None = None
    adaptation: Adaptation | None = None  # NumPy arrays on every device
    origin: Origin | None = None
    folder: Path | None = None

    def __repr__(self) -> str:
        auroc = self.metrics.get("test_auroc", self.metrics.get("auroc"))
        split = "test" if "test_auroc" in self.metrics else "validation"
        reached = "" if auroc is None else f", {split} AUROC {auroc:.3f}"
        return (
            f"Detector({self.name}: {self.parameters:,} parameters{reached}, "
            f"threshold {self.threshold:.3f})"
        )

    @property
    def parameters(self) -> int:
        if self.scorer is not None:
            return int(self.metrics.get("parameters") or 0)
        return sum(one.numel() for one in self.network.parameters())

    @property
    def samples(self) -> SampleKind | None:
        """The kind of samples that its network reads; None for a probe."""
        return None if self.scorer is not None else NETWORKS[self.name].samples

    @property
    def fields(self) -> frozenset[str]:
        """Everything that `assess` reads, except the batch of a network."""
        fallback = self.fallback.scorer if self.fallback else None
        parts: tuple[Any, ...] = (self.scorer, fallback, self.distance)
        more = frozenset() if self.adaptation is None else VECTOR_FIELDS
        return more.union({TOKENS}, *(part.fields for part in parts if part is not None))

    def as_dict(self) -> dict[str, Any]:
        """What `clew inspect` shows of a kept detector."""
        figures = ("val_auroc", "val_auroc_ci", "test_auroc", "test_auroc_ci")
        folds = self.metrics.get("out_of_fold") or {}
        return {
            "detector": self.name,
            "title": self.title,
            "model": self.model.get("id"),
            "trained_on": f"{self.answers} answers",
            "prompt": self.prompt.template,
            "parameters": self.parameters,
            "threshold": self.threshold,
            **{name: self.metrics[name] for name in figures if name in self.metrics},
            **{f"out_of_fold_{name}": folds[name] for name in figures[2:] if name in folds},
            "answers": self.kept.data,
            **({"adapted": self.kept.adapted} if self.kept.adapted else {}),
            **({} if self.promise is None else {"promise": self.promise.text}),
            "warning": self.warning,
        }

    @property
    def warning(self) -> str | None:
        """What every use of the detector must say, if it was kept although it may be guessing."""
        reason = self.metrics.get("at_chance")
        if reason is None:
            return None
        return f"the detector {self.name} is not shown to be better than chance: {reason}"

    @cached_property
    def promise(self) -> Promise | None:
        """What `clew calibrate` has promised of the answers with a low risk; None if it has not, or
        if calibration or threshold were changed since. Raises ValueError if it is damaged."""
        about = None if self.origin is None else self.origin.calibrated.get("promise")
        if about is None or self.calibration is None:
            return None
        found = read_as(Promise, about, "calibrated.promise")
        now = (self.threshold, asdict(self.calibration))
        return found if (found.threshold, found.calibration) == now else None

    @property
    def token_probe(self) -> TokenProbe | None:
        """What gives tokens a risk, and with it their shade: every use asks here, except where
        the risk of tokens is asked for. None if it was trained on answer labels alone: those do
        not say where the error is (AUROC 0.65 between correct and wrong facts of the same answers,
        docs/benchmarks.md)."""
        shades = self.tokens is not None and self.tokens.trained_on == "spans"
        return self.tokens if shades else None

    @property
    def kept(self) -> Origin:
        """Where it comes from. Raises InputError for a network without that."""
        if self.origin is None:
            raise InputError(
                f"{self.name} was loaded from a best.safetensors, which does not say which model "
                'it is for: give the folder "detector" beside it, which "clew train" wrote.'
            )
        return self.origin

    @property
    def model(self) -> dict[str, Any]:
        return self.kept.model

    @property
    def answers(self) -> str:
        """Whether it was fitted on answers that the model generated, or on given ones that it
        read."""
        return str(self.kept.capture.get(ANSWERS_KEY, "generated"))

    @property
    def prompt(self) -> Prompt:
        return self.kept.prompt

    @property
    def generation(self) -> dict[str, Any]:
        return self.kept.generation

    @property
    def shape(self) -> TraceShape:
        return self.kept.shape

    @property
    def sample_shape(self) -> SampleShape:
        """The sizes and edges of the samples that it was fitted on."""
        return describe_samples(self.kept)

    def score_blank(self) -> BlankAnswer:
        """Score an answer of zeros with every part; returns what was read. Raises ValueError, or
        whatever a part does, for one that does not fit the detector's shape."""
        blank = BlankAnswer(self.sample_shape, self.fields)
        for scorer in (self.scorer, self.fallback.scorer if self.fallback else None):
            if scorer is not None and len(scorer.score(blank, LIVE)) != 1:
                raise ValueError("its scores do not match its answers")
        if self.distance is not None:
            self.distance.measure(blank, LIVE)
        if self.adaptation is not None:
            vectors = build_vectors(np.zeros(1, np.float32), blank, LIVE)
            self.adaptation.score(vectors)
            self.adaptation.region.measure(vectors)
        return blank

    @property
    def state_layers(self) -> tuple[int, ...] | None:
        """The layers whose states `assess` reads, and those that shade tokens; None for all."""
        if self.scorer is None:
            return None
        layers = {layer for field, layer in self.score_blank().asked if field in STATE_FIELDS}
        layers.update(self.token_probe.layers if self.token_probe else ())
        return None if None in layers else tuple(sorted(one for one in layers if one is not None))

    def refuse_other(self, model: Mapping[str, Any], prompt: Prompt | None = None) -> None:
        """Raise InputError, with both values, for another model than the detector's, or another
        prompt. `model` is what `capture.models.describe_model` gives."""
        ours = self.model
        keys = ["id", "revision", "dtype", "quantize", "layers", "dim", "heads", "fingerprint"]
        if ours.get("fingerprint") and ours["fingerprint"] == model.get("fingerprint"):
            # The same weights may lie elsewhere, where they have no revision.
            has_revisions = ours.get("revision") and model.get("revision")
            keys = ["quantize", "revision"] if has_revisions else ["quantize"]
        before, now = ({name: one.get(name) for name in keys} for one in (ours, model))
        self._refuse(before, now, "model")
        if prompt is None:
            return
        both = (self.prompt.describe(), prompt.describe())
        # An earlier version of clew did not record the chat template.
        is_recorded = all(CHAT_TEMPLATE in one for one in both)
        self._refuse(*both, "prompt", () if is_recorded else (CHAT_TEMPLATE,))

    def _refuse(
        self,
        ours: Mapping[str, Any],
        theirs: Mapping[str, Any],
        what: str,
        may_differ: tuple[str, ...] = (),
    ) -> None:
        different = find_differences(ours, theirs, may_differ)
        if different:
            lines = (f"{d.name}: {d.before!r:.200}, not {d.now!r:.200}" for d in different)
            raise InputError(
                f"the detector {self.name} is for another {what}:\n  "
                + "\n  ".join(lines)
                + f"\nUse its own {what}, or make a detector for this one."
            )

    def to(self, device: str | torch.device) -> "Detector":
        """The same detector on a device; this one stays where it is."""
        parts = ("scorer", "fallback", "distance", "tokens", "basis")
        moved = {name: on_device(getattr(self, name), device) for name in parts}
        return replace(self, network=deepcopy(self.network).to(device), **moved)

    @torch.no_grad()
    def score(self, batch: Any) -> Float[Tensor, " batch"]:
        """Predict the risk of each answer in a batch of samples, with the detector's network.

        Args:
            batch: A batch of samples on the network's device, of the kind that the network was
                trained on.

        Returns:
            Risks from 0 to 1, `[batch]`.

        Raises:
            InputError: The network does not read this kind of batch, or there is no network, or it
                was adapted, and reads more than a batch.
        """
        if self.samples is None:
            raise InputError(f"{self.name} is not a network: use assess(), which reads its fields.")
        if self.adaptation is not None:
            raise InputError(f"{self.name} was adapted: use assess(), which reads its fields.")
        form = FORMS[self.samples]
        if not all(key in batch for key in form.keys):
            raise InputError(
                f"{self.name} cannot read this kind of batch: open the samples with "
                f"{form.opened_with}."
            )
        answer = self.network(batch)
        logits = answer[0] if isinstance(answer, tuple) else answer
        risks = logits.float().sigmoid()
        if self.calibration is None:
            return risks
        calibrated = calibrate(self.calibration, unfold(to_numpy(risks)))
        return torch.from_numpy(calibrated).to(risks)

    @torch.inference_mode()
    def assess(
        self,
        data: LiveData,
        scored: Float[np.ndarray, " answers"] | None = None,
        vectors: Vectors | None = None,
    ) -> list[Risk]:
        """The risk of every answer. One that is empty, cut off or not finite is "unavailable"; one
        whose features are unlike the training data gets no verdict, only the risk of its token
        probabilities. `scored` are the risks of a network that has scored its batches already: of
        `plain`, if it is adapted. `vectors` are those of `read_vectors`, if they have been read:
        the method's scores are in them."""
        if not len(data.labels[LIVE]):
            return []
        distances = self._distances(data)
        if self.adaptation is not None:
            vectors = self.read_vectors(data, scored) if vectors is None else vectors
            distances = np.minimum(distances, self.adaptation.region.measure(vectors))
            scored = calibrate(self.calibration, self.adaptation.score(vectors))
        elif vectors is not None and self.calibration is not None:
            scored = calibrate(self.calibration, vectors[:, 0])
        # A distance that is not a number is not a small one.
        is_far = ~(distances <= 1)
        others = self._fall_back(data) if is_far.any() else np.full(len(is_far), np.nan)
        if scored is None:
            scored = others if is_far.all() else self._risks(data)
        lengths = map(len, data.read(TOKENS, LIVE))
        rows = zip(scored, others, distances, is_far, lengths, data.stop_reasons, strict=True)
        return [self._answer(*row) for row in rows]

    def _answer(
        self, risk: float, other: float, distance: float, is_far: bool, length: int, ended: str
    ) -> Risk:
        shown = float(distance) if self.distance is not None and np.isfinite(distance) else None
        if not length:
            return unavailable("the answer is empty", method=self.name)
        if ended in _UNFINISHED:
            return unavailable(_UNFINISHED[ended], method=self.name)
        if is_far:
            is_known = self.fallback is not None and np.isfinite(other)
            return Risk(
                risk=None,
                verdict=None,
                threshold=None,
                state="out_of_distribution",
                method=self.fallback.scorer.statistic if self.fallback and is_known else self.name,
                reason="its features are unlike the training data",
                distance=shown,
                token_probability_risk=float(other) if is_known else None,
            )
        if not np.isfinite(risk):
            return unavailable("its features contain NaN or infinity", method=self.name)
        return Risk(
            risk=float(risk),
            verdict=judge(risk, self.threshold),
            threshold=self.threshold,
            state="checked",
            method=self.name,
            distance=shown,
        )

    @torch.inference_mode()
    def read_vectors(
        self, data: LiveData, scored: Float[np.ndarray, " answers"] | None = None
    ) -> Vectors:
        """What adaptation needs of every answer, also of those that are unlike the training data.
        `data` has the fields VECTOR_FIELDS as well. `scored` are the risks of a network that
        has scored its batches already: of `plain`."""
        if self.scorer is not None:
            scorer, _, read = self._quick(data)
            return build_vectors(to_numpy(scorer.score(read, LIVE)), data, LIVE)
        if scored is None:
            assert self.samples is not None
            scored = to_numpy(self.plain.score(data.batch(self.samples)))
        return build_vectors(unfold(scored), data, LIVE)

    @cached_property
    def plain(self) -> "Detector":
        """The fitted method, neither calibrated nor adapted."""
        return replace(self, calibration=None, adaptation=None)

    def ranking(self, numbers: int) -> Linear:
        """Its score, before calibration, as one that is linear in vectors of so many numbers."""
        return start_linear(numbers) if self.adaptation is None else self.adaptation.linear

    def _risks(self, data: LiveData) -> Float64[np.ndarray, " answers"]:
        if self.scorer is not None:
            scorer, _, read = self._quick(data)
            return calibrate(self.calibration, to_numpy(scorer.score(read, LIVE)))
        assert self.samples is not None
        return to_numpy(self.score(data.batch(self.samples))).astype(np.float64)

    def _distances(self, data: LiveData) -> Float64[np.ndarray, " answers"]:
        if self.distance is None:
            return np.zeros(len(data.labels[LIVE]))
        _, distance, read = self._quick(data)
        return to_numpy(distance.measure(read, LIVE)).astype(np.float64)

    def _quick(self, data: LiveData) -> tuple[Any, Any, Features]:
        """Scorer, distance and data as NumPy arrays where that is faster: many small steps on a
        CPU."""
        if self._on_host is None:
            return self.scorer, self.distance, data
        return (*self._on_host, HostAnswers(data))

    @cached_property
    def _on_host(self) -> tuple[Any, Any] | None:
        if not getattr(self.scorer, "has_small_steps", False):
            return None
        try:
            return on_host(self.scorer), on_host(self.distance)
        except TypeError:  # a tensor on a GPU
            return None

    def _fall_back(self, data: LiveData) -> Float64[np.ndarray, " answers"]:
        if self.fallback is None:
            return np.full(len(data.labels[LIVE]), np.nan)
        return calibrate(self.fallback.calibration, self.fallback.scorer.score(data, LIVE))


def calibrate(scale: PlattScale | None, scores: np.ndarray) -> Float64[np.ndarray, " answers"]:
    """Probabilities; NaN for scores that are not finite."""
    scores = np.asarray(scores, np.float64)
    if scale is None:
        return scores
    known = np.isfinite(scores)
    found = scale.probabilities(np.where(known, scores, 0.0))
    return np.where(known, found, np.nan)


def unfold(risks: np.ndarray) -> np.ndarray:
    """Convert a network's risks back to logits: calibration fits a line to them, as to the scores
    of probes."""
    clipped = np.clip(risks.astype(np.float64), _SURE, 1 - _SURE)
    return np.log(clipped / (1 - clipped)).astype(np.float32)


def describe_samples(origin: Origin) -> SampleShape:
    shape, made, capture = origin.shape, origin.preprocess, origin.capture
    source = SourceShape(
        **asdict(shape),
        evaluation=_evaluation_shape(origin),
        eigenvalues=read_as(_Count, capture.get(EIGENVALUES, LAPLACIAN_TOP), EIGENVALUES),
    )
    return SampleShape(
        source=source,
        features=made.get("node_dim") or shape.node_dim,
        top_k=made.get("top_k") or shape.edges_per_token,
        attn_threshold=made.get("attn_threshold") or 0.0,
    )


def _evaluation_shape(origin: Origin) -> EvaluationShape:
    """The sizes of what the model was asked about the training answers. Raises ValueError if the
    description of that cannot be used."""
    asked, made = origin.capture.get(EVALUATION_KEY), origin.generation
    draws = made.get("samples") if ENTAILMENT_KEY in origin.capture else 0
    found = None
    if asked is not None:
        from clew.hallucination.llm.self_evaluation import SelfEvaluation  # loads transformers

        found = SelfEvaluation.read(asked, origin.shape.layers)
    return EvaluationShape(
        phrasings=len(found.phrasings) if found else 0,
        layers=len(found.layers) if found else 0,
        draws=read_as(_Count, draws or 0, "generation.samples"),
    )


def on_device(part: Part, device: torch.device | str) -> Part:
    """The same part with its tensors on a device."""
    return _map_arrays(part, lambda array: as_tensor(array).to(device))


def on_host(part: Part) -> Part:
    """The same part with NumPy arrays."""
    return _map_arrays(part, np.asarray)


def _map_arrays(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, np.ndarray | Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in fields(value) if one.init]
        return replace(value, **{name: _map_arrays(getattr(value, name), change) for name in names})
    if isinstance(value, list | tuple) and any(map(has_arrays, value)):
        return tuple(_map_arrays(one, change) for one in value)
    return value


def has_arrays(value: Any) -> bool:
    return is_dataclass(value) or isinstance(value, np.ndarray | Tensor)


def as_tensor(value: Any) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
