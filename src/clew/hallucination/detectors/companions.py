"""What a detector has besides its fitted method: where it comes from, a fallback, the distance from
the training answers, the basis of the nodes and a token probe."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Self, get_args

from clew.base.errors import InputError
from clew.base.typed_json import read_as
from clew.hallucination.detectors.detector import Detector, Fallback, Origin
from clew.hallucination.detectors.probes.baselines import TokenStatistic, learn_statistic
from clew.hallucination.detectors.probes.gaussian import Distance
from clew.hallucination.detectors.probes.tokens import find_token_probe
from clew.hallucination.detectors.tokens import TokenProbe
from clew.hallucination.llm.prompts import Prompt
from clew.hallucination.samples.mixed import AnswerData
from clew.hallucination.samples.splits import Balance
from clew.hallucination.traces.basis import Basis
from clew.hallucination.traces.schema import TraceShape
from clew.metrics import PlattScale, auroc, best_threshold

_NODES = ("graphs", "grids")


@dataclass(frozen=True, kw_only=True)
class Companions:
    """What every detector of some samples has besides its method."""

    data: AnswerData
    fallback: Fallback | None
    distance: Distance | None
    basis: Basis | None
    tokens: TokenProbe | None

    @classmethod
    def fit(cls, data: AnswerData) -> Self:
        basis = data.load_basis()
        return cls(
            data=data,
            fallback=fit_fallback(data),
            distance=Distance.fit(data),
            basis=basis,
            tokens=None if basis is None else find_token_probe(data),
        )


def make_detector(fitted: Detector, beside: Companions) -> Detector:
    """The detector of a method that was fitted, calibrated and measured, with everything else that
    a live answer needs. Raises InputError if the samples do not say what a detector must know:
    which model and which prompt they come from, or the basis of their nodes."""
    origin = describe_origin(beside.data, fitted.metrics)
    names = () if fitted.scorer is None else fitted.scorer.fields
    if beside.basis is None and (
        fitted.samples in _NODES or any(name.startswith("node_") for name in names)
    ):
        raise InputError(
            f'"{beside.data.name}" has no basis.arrow, with which new states are projected: run '
            'the same "clew preprocess" command again to add it.'
        )
    return replace(
        fitted,
        fallback=beside.fallback,
        distance=beside.distance,
        basis=beside.basis,
        tokens=beside.tokens,
        origin=origin,
    )


def describe_origin(data: AnswerData, results: dict[str, Any]) -> Origin:
    """Where the samples come from. Raises InputError if they do not say."""
    settings = data.settings
    capture = settings["capture"]
    model, prompt = capture.get("model"), capture.get("prompt")
    if not (isinstance(model, dict) and model.get("id") and isinstance(prompt, dict)):
        raise InputError(
            f'"{data.name}" does not say which model and prompt its answers come from: use '
            'answers that "clew extract" captured.'
        )
    try:
        found = read_as(Prompt, prompt, "prompt")
    except ValueError as error:
        raise InputError(f'"{data.name}" has an unknown prompt ({error}).') from None
    return Origin(
        model=model,
        prompt=found,
        generation=capture.get("generation") or {},
        shape=TraceShape(
            layers=data.layers,
            dim=data.dim,
            heads=data.heads or 0,
            node_dim=capture.get("node_dim") or 0,
            edges_per_token=capture.get("edges_per_token") or 0,
        ),
        capture={k: v for k, v in capture.items() if k not in ("model", "prompt", "generation")},
        preprocess=settings["preprocess"],
        results=results,
        data={
            "questions": (data.identity.get("questions") or {}).get("name"),
            "traces": data.identity.get("sha256"),
            **{s: asdict(Balance.of(of)) for s, of in data.labels.items()},
        },
    )


def fit_fallback(data: AnswerData) -> Fallback | None:
    """The statistic of the token probabilities that is best on validation; None without them."""
    if not {"token_logprobs", "token_entropies"} <= data.fields:
        return None
    labels = data.labels["validation"]
    scorers = [learn_statistic(name, data).scorer for name in get_args(TokenStatistic)]
    found = {one: one.score(data, "validation") for one in scorers}
    best = max(found, key=lambda one: auroc(labels, found[one]))
    calibration = PlattScale.fit(labels, found[best])
    risks = calibration.probabilities(found[best])
    return Fallback(
        scorer=best,  # type: ignore[arg-type]
        calibration=calibration,
        threshold=best_threshold(labels, risks),
    )
