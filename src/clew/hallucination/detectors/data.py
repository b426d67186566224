"""The answers that a kept detector assesses, those just generated (`live` builds them) or those of
a split in a folder of samples; and what it says about each: a calibrated risk, the verdict, and
whether it could be checked at all."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.method import Features, Wrapped, layers_of
from clew.hallucination.samples.datasets import SampleKind
from clew.hallucination.samples.source import NODE_TOKENS, SampleShape
from clew.hallucination.traces.schema import ENTAILMENT, EVALUATION, P_TRUE

State = Literal["checked", "out_of_distribution", "unavailable"]
Verdict = Literal["correct", "hallucinated"]
RiskLevel = Literal["low", "high"]
# What a person reads in place of the names in files and in the API. "Correct" and "hallucinated"
# are a label's words: a detector does not know.
LEVEL_WORDS: dict[RiskLevel, str] = {"low": "low risk", "high": "high risk"}
STATE_WORDS: dict[State, str] = {
    "checked": "checked",
    "out_of_distribution": "not familiar",
    "unavailable": "unavailable",
}
NO_VERDICT = "not familiar: no verdict"
REMEDY = (
    "label answers of this kind and train a detector on them, too: "
    '"clew extract" with `answers="given"` reads them'
)


@dataclass(frozen=True, kw_only=True)
class Risk:
    """The risk of one answer: the calibrated probability that it is hallucinated. Only an answer
    whose `state` is "checked" has one, and a verdict; `reason` says why another has none.
    `threshold` is the risk above which the verdict is "hallucinated", in other words the
    `risk_level` "high". `distance` is that of the features to the training answers, in units of the
    limit: above 1 is out of distribution. An answer beyond it may have a `token_probability_risk`,
    which says less: `method` is then the statistic of the token probabilities, otherwise the
    detector's."""

    risk: float | None
    verdict: Verdict | None
    threshold: float | None
    state: State
    method: str
    reason: str | None = None
    distance: float | None = None
    token_probability_risk: float | None = None

    @property
    def risk_level(self) -> RiskLevel | None:
        return None if self.verdict is None else level_of(self.verdict)

    @property
    def words(self) -> str:
        """The verdict, for a person."""
        if self.risk_level is not None:
            return LEVEL_WORDS[self.risk_level]
        return NO_VERDICT if self.state == "out_of_distribution" else "not checked"

    def explain(self) -> str:
        """The state and its reason, for a person."""
        reason = f": {self.reason}" if self.reason else ""
        other = self.token_probability_risk
        apart = "" if other is None else f"; token-probability risk {other:.2f} ({self.method})"
        return f"{STATE_WORDS[self.state]}{reason}{apart}"

    def to_dict(self) -> dict[str, Any]:
        """As in JSON answers; `method` and `distance` included."""
        return {**asdict(self), "risk_level": self.risk_level}


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What labeled answers prove: of the answers shown, those with a risk of at most `threshold` by
    this `calibration`, at most `max_wrong_shown` are wrong. Over the draw of the labels, that fails
    with a probability of at most 1 - `confidence`. Of the labeled `answers`, `shown` would be
    shown; not those that are `not_familiar` or `unchecked`. It holds for answers like them."""

    max_wrong_shown: float
    confidence: float
    threshold: float
    calibration: dict[str, float]
    answers: int
    not_familiar: int
    unchecked: int
    shown: int
    wrong_shown: int
    share_shown: float
    share_interval: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        """As detector.json has it."""
        return {**asdict(self), "share_interval": list(self.share_interval)}

    @property
    def limits(self) -> dict[str, float]:
        """The promise in numbers, as in JSON answers."""
        return {"max_wrong_shown": self.max_wrong_shown, "confidence": self.confidence}

    @property
    def text(self) -> str:
        low, high = self.share_interval
        return (
            f"at most {self.max_wrong_shown:.1%} of the answers shown are wrong "
            f"({self.confidence:.0%} confidence), for answers like the {self.answers:,} labeled "
            f"ones{tell_not_shown(self.not_familiar, self.unchecked)}; {self.share_shown:.0%} "
            f"[{low:.0%}, {high:.0%}] of the answers are shown, those with a risk of at most "
            f"{self.threshold:.3f}"
        )


@dataclass(frozen=True, kw_only=True)
class RiskPolicy:
    """What becomes of an answer that has no low risk: a high one, or none. "flag" delivers it with
    its risk; "withhold" delivers nothing of it, "replace" a `replacement` instead."""

    on_risk: Literal["flag", "withhold", "replace"] = "flag"
    replacement: str | None = None

    def __post_init__(self) -> None:
        if (self.on_risk == "replace") != bool(self.replacement):
            raise InputError(
                'a replacement is needed with "replace", and only then.',
                setting="replacement",
                value=self.replacement,
            )

    def withholds(self, risk_level: str | None) -> bool:
        return self.on_risk != "flag" and risk_level != "low"


def tell_not_shown(not_familiar: int, unchecked: int) -> str:
    parts = (("not familiar", not_familiar), ("not checked", unchecked))
    words = " and ".join(f"{count:,} {name}" for name, count in parts if count)
    return f" ({words}: not shown)" if words else ""


def judge(risk: float, threshold: float) -> Verdict:
    return "hallucinated" if risk > threshold else "correct"


def level_of(verdict: Verdict) -> RiskLevel:
    return "high" if verdict == "hallucinated" else "low"


def unavailable(reason: str, *, method: str) -> Risk:
    """The risk of an answer that was not checked."""
    return Risk(
        risk=None, verdict=None, threshold=None, state="unavailable", method=method, reason=reason
    )


_BY_NODE = ("node_mean", "node_max", "node_prompt")
# Of every layer, states or what was made of them.
STATE_FIELDS = frozenset(("sequence", "state_mean", *_BY_NODE, NODE_TOKENS))
# What an engine other than clew's own gives: states and probabilities of tokens, no attention.
FED_FIELDS = STATE_FIELDS.union(
    ("question", "answer", "stop_reason", "token_logprobs", "token_entropies")
)


def why_not_fed(fields: Collection[str], samples: SampleKind | None) -> str | None:
    """Why states and token probabilities are not all that a detector with these `fields` reads, on
    this kind of `samples`; None if they are."""
    more = sorted({*fields} - FED_FIELDS)
    if samples not in (None, "sequences"):
        more.append(f"{samples} of attention")
    return f"it also reads {', '.join(more)}" if more else None


LIVE = "live"
_BY_HEAD = ("lookback", "log_diagonal_all", "log_diagonal_answer", "laplacian_answer")


class LiveData(Features, Protocol):
    """Answers in one split, "live". `read` returns float32 tensors on the detector's device, lists
    of 1-D tensors for ragged fields and of strings for texts; `stop_reasons` say why each answer
    ended; `batch` is what a network on that kind of samples reads."""

    @property
    def stop_reasons(self) -> list[str]: ...

    def batch(self, kind: SampleKind) -> Any: ...


@dataclass(frozen=True, eq=False)
class StoredAnswers(Wrapped):
    """A split of stored answers as live data. Networks are scored batch by batch instead, with
    `score_samples`."""

    split: str
    device: torch.device | str = "cpu"

    @property
    def labels(self) -> dict[str, np.ndarray]:
        return {LIVE: self.data.labels[self.split]}

    @cached_property
    def stop_reasons(self) -> list[str]:
        if "stop_reason" not in self.fields:
            return [""] * len(self.labels[LIVE])
        return [reason or "" for reason in self.data.read("stop_reason", self.split)]

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:  # noqa: ARG002
        values = self.data.read(field, self.split, layer=layer)
        if isinstance(values, np.ndarray):
            return torch.from_numpy(values).to(self.device)
        return [
            torch.from_numpy(v).to(self.device) if isinstance(v, np.ndarray) else v for v in values
        ]

    def batch(self, kind: SampleKind) -> Any:
        raise NotImplementedError(f"stored {kind} are scored batch by batch")


@dataclass(frozen=True, eq=False)
class HostAnswers(Wrapped):
    """Live data on a CPU as NumPy arrays, which share its memory. An operation on few values takes
    a fraction of the time that it takes on tensors."""

    @property
    def labels(self) -> dict[str, np.ndarray]:
        return self.data.labels

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:
        values = self.data.read(field, split, layer=layer)
        if isinstance(values, Tensor):
            return values.numpy()
        return [value.numpy() if isinstance(value, Tensor) else value for value in values]


@dataclass(frozen=True, eq=False)
class BlankAnswer:
    """One answer whose values are all 0: a detector that cannot score it does not fit its shape.
    `asked` are the fields and layers that were read."""

    shape: SampleShape
    fields: frozenset[str]
    asked: set[tuple[str, int | None]] = field(default_factory=set)

    @property
    def layers(self) -> int:
        return self.shape.source.layers

    @property
    def without_attention(self) -> tuple[int, ...]:
        return self.shape.source.without_attention

    @property
    def labels(self) -> dict[str, np.ndarray]:
        return {LIVE: np.zeros(1, np.int8)}

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:  # noqa: ARG002
        self.asked.add((field, layer))
        if field.startswith("token_"):
            return [torch.zeros(1)]
        if field == NODE_TOKENS:
            return [self._zeros("node_mean", () if layer is not None else (self.layers,))]
        if field in EVALUATION:
            return self._evaluated(field, layer)
        if field not in (*_BY_HEAD, *_BY_NODE, "laplacian_top", "sequence", "state_mean"):
            return [["a"]] if field == "samples" else [""]
        layers = len(layers_of(field, self))
        if layer is not None and not 0 <= layer < layers:
            raise IndexError(f"layer {layer} of {layers}")
        return self._zeros(field, () if layer is not None else (layers,))

    def _evaluated(self, field: str, layer: int | None) -> Tensor:
        evaluation, dim = self.shape.source.evaluation, self.shape.source.dim
        sizes = {P_TRUE: (evaluation.phrasings,), ENTAILMENT: (evaluation.draws,) * 2}
        blank = torch.zeros(1, *sizes.get(field, (evaluation.layers, dim)))
        return blank if layer is None else blank[:, layer]

    def _zeros(self, field: str, layers: tuple[int, ...]) -> Tensor:
        source = self.shape.source
        heads = source.heads
        sizes: dict[str, tuple[int, ...]] = {
            "laplacian_top": (heads, source.eigenvalues),
            **dict.fromkeys(_BY_HEAD, (heads,)),
            **dict.fromkeys(_BY_NODE, (self.shape.features,)),
        }
        return torch.zeros(1, *layers, *sizes.get(field, (source.dim,)))
