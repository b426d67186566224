"""What a detector has besides its fitted method: where it comes from, a fallback, the distance from
the training answers, the basis of the nodes and a token probe; and how its calibration is refitted
to other labeled answers, since how often a model hallucinates differs from one use to another."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self, get_args

import numpy as np
from jaxtyping import Bool, Float64, Int

from clew.base.errors import InputError
from clew.base.typed_json import read_as
from clew.hallucination.detectors.adaptation import Labels, Vectors, adapt_vectors
from clew.hallucination.detectors.data import Risk, StoredAnswers
from clew.hallucination.detectors.detector import Detector, Fallback, Origin
from clew.hallucination.detectors.probes.baselines import TokenStatistic, learn_statistic
from clew.hallucination.detectors.probes.gated import Distance
from clew.hallucination.detectors.probes.tokens import find_token_probe
from clew.hallucination.detectors.tokens import TokenProbe
from clew.hallucination.detectors.training.samples import PreprocessedData, score_batches
from clew.hallucination.llm.prompts import Prompt
from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.mixed import AnswerData
from clew.hallucination.samples.splits import Balance
from clew.hallucination.traces.compact import Basis
from clew.hallucination.traces.schema import TraceShape
from clew.loading.loader import Loader
from clew.loading.order import Rank
from clew.loading.splits import SPLIT_NAMES
from clew.metrics.calibration import PlattScale, expected_calibration_error
from clew.metrics.measures import best_threshold, threshold_for_rate
from clew.metrics.ranking import auroc, bootstrap_auroc

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
            without_attention=data.without_attention,
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


_FOLDS, _BATCH = 5, 64
# Entries of a method's results that another calibration and threshold do not change.
_UNCHANGED = ("auroc", "auprc")
# With fewer answers of a class, two numbers cannot be fitted to them.
FEWEST = 10
_CHANCE = 0.5  # the AUROC of a guess
_ADAPTED = ", adapted"
# What to do about a detector that is at chance.
MORE_ANSWERS = (
    "Label more answers, or keep it with `keep_at_chance=True`: every use of it will say so"
)


def measure_chance(
    train: np.ndarray,
    validation: np.ndarray,
    scores: Float64[np.ndarray, " validation"],
    clusters: np.ndarray | None = None,
) -> dict[str, Any]:
    """What a detector keeps of its validation answers: the interval of its AUROC, and under
    "at_chance" why it is not shown to be better than chance, None if it is. `train` and
    `validation` are labels; `clusters` hold validation answers that depend on each other."""
    low, high = bootstrap_auroc(validation, scores, clusters=clusters)
    reason = None
    for name, labels in (("training", train), ("validation", validation)):
        hallucinated = int((labels > 0).sum())
        counts = {"hallucinated": hallucinated, "correct": len(labels) - hallucinated}
        rarer = min(counts, key=lambda kind: counts[kind])
        if reason is None and counts[rarer] < FEWEST:
            reason = f"only {counts[rarer]} of its {len(labels):,} {name} answers are {rarer}"
    if reason is None and low <= _CHANCE:
        area = auroc(validation, scores)
        reason = f"its AUROC on validation answers is {area:.2f} [{low:.2f}, {high:.2f}]"
    return {"val_auroc_ci": [low, high], "at_chance": reason}


@dataclass(frozen=True, kw_only=True)
class LabeledRisks:
    """The risks that a detector gave to labeled answers; 1 is hallucinated. Those that were out of
    distribution (`is_far`) have the risk of their token probabilities. Of the `excluded` answers,
    those that are `unchecked` have a label, but no risk."""

    risks: Float64[np.ndarray, " answers"]
    labels: Int[np.ndarray, " answers"]
    is_far: Bool[np.ndarray, " answers"]
    excluded: int = 0
    unchecked: int = 0

    @classmethod
    def of(cls, risks: Sequence[Risk], labels: np.ndarray) -> "LabeledRisks":
        """Without the answers that were not checked."""
        found = [r.token_probability_risk if r.risk is None else r.risk for r in risks]
        known = np.array([risk is not None for risk in found], bool)
        values = np.array([np.nan if risk is None else risk for risk in found])
        far = np.array([risk.state == "out_of_distribution" for risk in risks], bool)
        return cls(
            risks=values[known],
            labels=labels[known].astype(np.int8),
            is_far=far[known],
            excluded=int((~known).sum()),
            unchecked=int((~known).sum()),
        )

    def part(self, *, is_far: bool) -> "LabeledRisks":
        rows = self.is_far == is_far
        return LabeledRisks(
            risks=self.risks[rows], labels=self.labels[rows], is_far=self.is_far[rows]
        )

    @property
    def rarest(self) -> int:
        """The number of answers of the rarer class."""
        hallucinated = int(self.labels.sum())
        return min(hallucinated, len(self.labels) - hallucinated)


def assess_samples(detector: Detector, data: AnswerFeatures) -> LabeledRisks:
    """The risks of all answers in a folder of samples. Raises InputError if the detector was fitted
    on them, or if they are of another model or prompt."""
    splits = _refuse_other_samples(detector, data)
    risks = [risk for split in splits for risk in _assess_split(detector, data, split)]
    return LabeledRisks.of(risks, np.concatenate([data.labels[split] for split in splits]))


def read_sample_vectors(
    detector: Detector, data: AnswerFeatures
) -> tuple[Vectors, Int[np.ndarray, " answers"]]:
    """What adaptation needs of all answers in a folder of samples, and their labels. Raises
    InputError as `assess_samples` does."""
    splits = _refuse_other_samples(detector, data)
    vectors = [
        detector.read_vectors(StoredAnswers(data, split), _score_split(detector.plain, data, split))
        for split in splits
    ]
    return np.concatenate(vectors), np.concatenate([data.labels[split] for split in splits])


def _refuse_other_samples(detector: Detector, data: AnswerFeatures) -> list[str]:
    """The splits with answers."""
    origin = describe_origin(data, {})
    detector.refuse_other(origin.model, origin.prompt)
    if detector.kept.data.get("traces") == data.identity["sha256"]:
        raise InputError(
            f'the detector {detector.name} was fitted on the answers in "{data.folder}", so its '
            "risks look better there than they are: use other answers.",
            setting="samples",
            value=data.folder,
        )
    return [split for split in SPLIT_NAMES if len(data.labels[split])]


def _assess_split(detector: Detector, data: AnswerFeatures, split: str) -> list[Risk]:
    network = detector if detector.adaptation is None else detector.plain
    return detector.assess(StoredAnswers(data, split), _score_split(network, data, split))


def _score_split(detector: Detector, data: AnswerFeatures, split: str) -> np.ndarray | None:
    """A network reads its samples batch by batch; None for a probe."""
    if detector.samples is None:
        return None
    samples = PreprocessedData(folder=data.folder).open(detector.samples, split)
    return score_batches(detector, Loader(samples, _BATCH, rank=Rank()))


def adapt_detector(detector: Detector, vectors: Vectors, labels: Labels) -> Detector:
    """Adapt ranking, calibration, threshold and what is familiar to answers, some of which have
    labels (UNLABELED for the others). `adapted` of its origin has the figures. Raises InputError
    for too few labels, or vectors of another detector."""
    assert detector.calibration is not None
    before, shape = detector.ranking(vectors.shape[1]), detector.shape
    found = adapt_vectors(vectors, labels, before, detector.calibration, shape.layers)
    threshold = detector.threshold if found.threshold is None else found.threshold
    figures = {
        "from": str(detector.folder or detector.name),
        **found.figures,
        "threshold_before": detector.threshold,
        "threshold_after": threshold,
    }
    results: dict[str, Any] = {"threshold": threshold, "parameters": detector.parameters}
    if figures["kept_ranking"] is None:
        results |= {"val_auroc": figures["auroc_after"], "val_auroc_ci": figures["auroc_after_ci"]}
        results["at_chance"] = _doubt_adapted(figures)
    else:
        results["at_chance"] = detector.metrics.get("at_chance")
    return replace(
        detector,
        title=detector.title.removesuffix(_ADAPTED) + _ADAPTED,
        adaptation=found.adaptation,
        calibration=found.calibration,
        threshold=threshold,
        metrics=results,
        origin=replace(detector.kept, results=results, calibrated={}, adapted=figures),
    )


def _doubt_adapted(figures: Mapping[str, Any]) -> str | None:
    low, high = figures["auroc_after_ci"]
    if low > _CHANCE:
        return None
    area, count = figures["auroc_after"], figures["labels"]
    return f"its AUROC on {count:,} labeled answers is {area:.2f} [{low:.2f}, {high:.2f}]"


def refit(detector: Detector, answers: LabeledRisks, target_fpr: float | None) -> Detector:
    """Refit calibration and threshold: the threshold with the highest F1, or with at most
    `target_fpr` of the correct answers above it. The fallback keeps its own unless enough answers
    were out of distribution. `calibrated` has the figures; `ece_after` comes from fits that did not
    see the answers that they are measured on. Raises InputError for too few answers of a class."""
    assert detector.calibration is not None
    found = refit_scale(detector.calibration, detector.threshold, answers, target_fpr)
    changed = replace(detector, calibration=found.calibration, threshold=found.threshold)
    far = answers.part(is_far=True)
    if detector.fallback is not None and far.rarest >= FEWEST:
        own, limit, _ = _fit(detector.fallback.calibration, far, target_fpr)
        fallback = replace(detector.fallback, calibration=own, threshold=limit)
        changed = replace(changed, fallback=fallback)
    return record_calibration(changed, found.figures)


class Refitted(NamedTuple):
    """A new calibration and threshold, and what they do."""

    calibration: PlattScale
    threshold: float
    figures: dict[str, Any]


def refit_scale(
    scale: PlattScale, threshold: float, answers: LabeledRisks, target_fpr: float | None
) -> Refitted:
    """Raises InputError for too few answers of a class that were checked."""
    checked = answers.part(is_far=False)
    if checked.rarest < FEWEST:
        raise InputError(
            f"{int(checked.labels.sum()):,} of the {len(checked.labels):,} answers that were "
            f"checked are hallucinated, but calibration requires at least {FEWEST} correct and "
            f"{FEWEST} hallucinated ones: label more answers."
        )
    calibration, chosen, after = _fit(scale, checked, target_fpr)
    figures = {
        "answers": len(answers.labels),
        "out_of_distribution": int(answers.is_far.sum()),
        "excluded": answers.excluded,
        "ece_before": expected_calibration_error(checked.labels, checked.risks),
        "ece_after": expected_calibration_error(checked.labels, after),
        "threshold_before": threshold,
        "threshold_after": chosen,
        **_rates(checked.labels, scale.convert(checked.risks, calibration), chosen),
    }
    return Refitted(calibration, chosen, figures)


def _rates(labels: np.ndarray, risks: np.ndarray, threshold: float) -> dict[str, float | None]:
    """What the threshold does to these answers; without any above it, there is no precision."""
    above, is_hallucinated = risks > threshold, labels == 1
    return {
        "false_positive_rate": float(above[~is_hallucinated].mean()),
        "recall": float(above[is_hallucinated].mean()),
        "precision": float(is_hallucinated[above].mean()) if above.any() else None,
    }


def record_calibration(detector: Detector, figures: dict[str, Any]) -> Detector:
    """Say what it was calibrated on. What the test split measured with the calibration before does
    not describe this one."""
    results = {
        name: value
        for name, value in detector.metrics.items()
        if not name.startswith("test_") or name.removeprefix("test_").startswith(_UNCHANGED)
    }
    results["threshold"] = detector.threshold
    origin = replace(detector.kept, results=results, calibrated=figures)
    return replace(detector, metrics=results, origin=origin)


def _fit(
    scale: PlattScale, answers: LabeledRisks, target_fpr: float | None
) -> tuple[PlattScale, float, Float64[np.ndarray, " answers"]]:
    """The new calibration and threshold, and each answer's risk by a fit without it."""
    found = scale.refit(answers.labels, answers.risks)
    risks = scale.convert(answers.risks, found)
    if target_fpr is None:
        threshold = best_threshold(answers.labels, risks)
    else:
        threshold = threshold_for_rate(answers.labels, risks, false_positive_rate=target_fpr)
    unseen = np.empty_like(risks)
    fold = np.empty(len(risks), int)  # both classes in every fold, in the order of the answers
    for one in (0, 1):
        rows = np.flatnonzero(answers.labels == one)
        fold[rows] = np.arange(len(rows)) % _FOLDS
    for number in range(_FOLDS):
        own = fold == number
        other = scale.refit(answers.labels[~own], answers.risks[~own])
        unseen[own] = scale.convert(answers.risks[own], other)
    return found, threshold, unseen
