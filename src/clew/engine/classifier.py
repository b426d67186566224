"""Makes any network that returns logits trainable, with losses for classification, and evaluates it
on batches it is not trained on, shared by all processes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from clew.base.errors import InputError, TrainingError
from clew.base.settings import check_fraction
from clew.base.texts import counted, list_some
from clew.engine.config import Batches, StepOutput
from clew.engine.config import Precision as PrecisionName
from clew.engine.feed import Courier, count_samples, sample_names
from clew.engine.plan import HardwarePlan
from clew.engine.processes import gather
from clew.engine.step import build_precision, restored_precision
from clew.metrics.measures import best_threshold
from clew.metrics.ranking import auroc

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from clew.engine.step import Precision


Metrics = dict[str, float | None]


class Classifier(nn.Module):
    """Makes any network that returns logits trainable with `fit`.

    Args:
        network: `network(batch)` returns logits `[batch]`, `[batch, 1]` or `[batch, classes]`, or
            `(logits, {"kl": ...})`: further losses, already weighted, which are added and reported.
            Labels are in `batch["label"]`.
        loss: Takes logits and labels and returns the mean over the samples. `BinaryLoss()` by
            default; use `CategoricalLoss()` for several classes.

    Raises:
        InputError: By `training_step`, if the logits do not match the labels or the loss's class
            weights.

    Examples:
        >>> class Network(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = nn.Linear(64, 3)
        ...     def forward(self, batch):
        ...         return self.layer(batch["features"])
        >>> model = Classifier(Network(), CategoricalLoss(label_smoothing=0.1))
    """

    def __init__(
        self, network: nn.Module, loss: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.network = network
        self.loss = loss or BinaryLoss()

    @property
    def pad_batch(self) -> Callable[[Any], Any] | None:
        """The network's `pad_batch`, which pads batches of varying shape to one of a few shapes;
        None if it has none."""
        return getattr(self.network, "pad_batch", None)

    def forward(self, batch: Any) -> Any:
        return self.network(batch)

    def training_step(self, batch: Any) -> StepOutput:
        answer = self.network(batch)
        logits, extra = answer if isinstance(answer, tuple) else (answer, {})
        labels = batch["label"]
        scores = logits[:, 0] if logits.dim() == 2 and logits.shape[1] == 1 else logits
        if scores.dim() not in (1, 2) or scores.shape[0] != labels.shape[0]:
            raise InputError(
                f"the network returns logits of shape {tuple(scores.shape)} for {labels.shape[0]} "
                "labels: it must return one logit per sample, [batch], or one per class, [batch, "
                "classes]."
            )
        loss = self.loss(scores, labels)
        for further in extra.values():
            loss = loss + further
        return StepOutput(loss=loss, scores=scores, labels=labels, metrics=extra)


@dataclass(frozen=True, kw_only=True)
class BinaryLoss:
    """Binary cross-entropy of logits `[batch]` and labels `[batch]`, where label 1 is positive,
    averaged over the samples.

    `focal_gamma` enables focal loss, which focuses on hard samples: each loss is multiplied by
    (1 - p)^gamma, where p is the probability of the true class. `label_smoothing=0.1` gives targets
    of 0.05 and 0.95. `positive_weight` multiplies the loss of positive samples. Raises InputError
    for invalid settings.
    """

    focal_gamma: float | None = None
    label_smoothing: float = 0.0
    positive_weight: float | None = None

    def __post_init__(self) -> None:
        _check(self)
        if self.positive_weight is not None and not self.positive_weight > 0:
            raise InputError(
                "it must be greater than 0.", setting="positive_weight", value=self.positive_weight
            )

    def __call__(
        self, logits: Float[Tensor, " batch"], labels: Shaped[Tensor, " batch"]
    ) -> Float[Tensor, ""]:
        logits, labels = logits.float(), labels.float()
        smoothed = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        losses = F.binary_cross_entropy_with_logits(logits, smoothed, reduction="none")
        if self.focal_gamma is not None:
            # log(1 - p) computed from the logit itself stays finite, and so does its gradient.
            wrong = F.logsigmoid(logits * (1 - 2 * labels))
            losses = losses * torch.exp(self.focal_gamma * wrong)
        if self.positive_weight is not None:
            losses = losses * (1 + (self.positive_weight - 1) * labels)
        return losses.mean()


@dataclass(frozen=True, kw_only=True)
class CategoricalLoss:
    """Cross-entropy of logits `[batch, classes]`, averaged over the samples.

    Labels are class indices `[batch]`, or distributions over the classes `[batch, classes]`.
    `class_weights` multiply the losses of each class's samples; `focal_gamma` and `label_smoothing`
    are as in `BinaryLoss`. Raises InputError for invalid settings.
    """

    focal_gamma: float | None = None
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _check(self)
        if self.class_weights is not None and not all(w > 0 for w in self.class_weights):
            raise InputError(
                f"class_weights are {self.class_weights}: each must be greater than 0."
            )

    def __call__(
        self,
        logits: Float[Tensor, "batch classes"],
        labels: Shaped[Tensor, " batch"] | Float[Tensor, "batch classes"],
    ) -> Float[Tensor, ""]:
        logits, classes = logits.float(), logits.shape[1]
        shares = F.one_hot(labels.long(), classes).float() if labels.dim() == 1 else labels.float()
        smoothed = shares * (1 - self.label_smoothing) + self.label_smoothing / classes
        log_probabilities = F.log_softmax(logits, dim=1)
        losses = -(smoothed * log_probabilities).sum(1)
        if self.focal_gamma is not None:
            wrong = (-torch.expm1(log_probabilities)).clamp_min(1e-8)
            losses = losses * (shares * wrong**self.focal_gamma).sum(1)
        if self.class_weights is not None:
            if len(self.class_weights) != classes:
                raise InputError(
                    f"class_weights are {self.class_weights}, but the network has {classes} "
                    "classes: give one weight per class."
                )
            losses = losses * (shares @ logits.new_tensor(self.class_weights))
        return losses.mean()


def _check(loss: "BinaryLoss | CategoricalLoss") -> None:
    if loss.focal_gamma is not None and not loss.focal_gamma >= 0:
        raise InputError(
            "it must be 0 or more (2 is typical).", setting="focal_gamma", value=loss.focal_gamma
        )
    check_fraction(loss, "label_smoothing")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores of all samples on the CPU, in the order of the batches, and the mean losses.

    `names` are the samples' question ids (or indices), empty if the batches have none.
    """

    samples: int
    means: dict[str, float]
    scores: Float[Tensor, " samples"] | Float[Tensor, "samples classes"] | None
    labels: Shaped[Tensor, " samples"] | None
    names: list[str]

    @property
    def unusable(self) -> list[str]:
        """Names of the samples with non-finite scores."""
        if self.scores is None:
            return []
        wrong = self.scores.isfinite().logical_not().reshape(len(self.scores), -1).any(dim=1)
        return [self.names[i] if self.names else str(i) for i in wrong.nonzero()[:, 0].tolist()]

    def threshold(self) -> float | None:
        """The threshold that maximizes F1 on these samples; None for several classes, or without
        positives."""
        if self.scores is None or self.labels is None or self.scores.dim() != 1:
            return None
        labels = self.labels.long()
        if not labels.any():
            return None
        probabilities = self.scores.double().sigmoid()
        best = best_threshold(labels.numpy(), probabilities.numpy(), both_classes=False)
        # Just below 0 if the logits are so low that their probabilities round to 0.
        return max(0.0, best)

    def metrics(self, threshold: float | None = None) -> Metrics:
        """Losses, and the metrics of the scores at `threshold` (a probability)."""
        if self.scores is None or self.labels is None:
            return {**self.means}
        return {**self.means, **score_metrics(self.scores, self.labels, threshold)}


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Batches,
    fabric: "Fabric",
    precision: "Precision",
    *,
    channels_last: bool = False,
) -> Evaluation:
    """Runs the model over the batches in eval mode, then restores its mode.

    Raises InputError when there are no samples.
    """
    was_training = model.training
    model.eval()
    part, courier = _Part(), Courier(fabric.device, channels_last=channels_last)
    try:
        for batch in batches:
            on_device = courier.bring(batch)
            with precision.forward_context():
                output = model.training_step(on_device)  # type: ignore[operator]
            courier.keep(batch)
            part.add(batch, output)
    finally:
        model.train(was_training)
    return _join(gather(fabric, part.read()))


class _Part:
    """The outputs that one process has collected; they are copied from the device only at the
    end."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._means: list[Tensor] = []
        self._metric_names: tuple[str, ...] = ()
        self._scores: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._names: list[str] = []

    def add(self, batch: Any, output: StepOutput) -> None:
        self._counts.append(count_samples(batch))
        self._names.extend(sample_names(batch))
        means = {"loss": output.loss, **output.metrics}
        self._metric_names = tuple(means)
        self._means.append(torch.stack([value.float() for value in means.values()]))
        if output.scores is not None and output.labels is not None:
            self._scores.append(output.scores.float())
            self._labels.append(output.labels)

    def read(self) -> dict[str, Any]:
        """The collected outputs on the CPU, so that they can be sent to the other processes."""
        if not self._counts:
            return {"samples": 0}
        counts = torch.tensor(self._counts, dtype=torch.float64)
        sums = (torch.stack(self._means).cpu().double() * counts[:, None]).sum(0)
        return {
            "samples": sum(self._counts),
            "sums": dict(zip(self._metric_names, sums.tolist(), strict=True)),
            "scores": torch.cat(self._scores).cpu() if self._scores else None,
            "labels": torch.cat(self._labels).cpu() if self._labels else None,
            "names": self._names,
        }


def _join(parts: list[dict[str, Any]]) -> Evaluation:
    parts = [part for part in parts if part["samples"]]
    if not parts:
        raise InputError("there are no samples to evaluate on: check the split.")
    samples = sum(part["samples"] for part in parts)
    sums = {name: sum(part["sums"][name] for part in parts) for name in parts[0]["sums"]}
    scored = parts[0]["scores"] is not None
    return Evaluation(
        samples=samples,
        means={name: value / samples for name, value in sums.items()},
        scores=torch.cat([part["scores"] for part in parts]) if scored else None,
        labels=torch.cat([part["labels"] for part in parts]) if scored else None,
        names=[name for part in parts for name in part["names"]],
    )


@restored_precision()
def score(model: nn.Module, batches: Batches, plan: HardwarePlan, fabric: "Fabric") -> Evaluation:
    """Score all samples. If only fp16 gives non-finite scores, fp32 is used instead; otherwise they
    raise TrainingError."""
    names: list[PrecisionName] = ["fp16", "fp32"] if plan.precision == "fp16" else [plan.precision]
    for name in names:
        precision = build_precision(name, fabric.device)
        result = evaluate(model, batches, fabric, precision, channels_last=plan.channels_last)
        if not result.unusable:
            return result
    raise TrainingError(
        f"the network's scores for {counted(len(result.unusable), 'sample')} are non-finite "
        f"({list_some(result.unusable)}): their data may contain NaN or infinity. Exclude them."
    )


def score_metrics(scores: Tensor, labels: Tensor, threshold: float | None = None) -> Metrics:
    """Metrics of logits `[samples]` or `[samples, classes]` on the CPU. An undefined metric is
    None: AUROC if all labels are the same, F1 without a positive sample."""
    if scores.dim() == 1:
        return _binary(scores, labels.long(), 0.5 if threshold is None else threshold)
    return _multiclass(scores, labels.long())


def _binary(
    scores: Float[Tensor, " samples"], labels: Int64[Tensor, " samples"], threshold: float
) -> Metrics:
    positive, found = labels == 1, scores.double().sigmoid() > threshold
    return {
        # From the logits: extreme probabilities would round to the same number.
        "auroc": _auroc(scores, positive) if 0 < int(positive.sum()) < len(labels) else None,
        "accuracy": _share(found == positive),
        "f1": _f1(found, positive) if positive.any() else None,
    }


def _multiclass(
    scores: Float[Tensor, "samples classes"], labels: Int64[Tensor, " samples"]
) -> Metrics:
    """AUROC and F1 are means over the classes, each against the others."""
    probabilities = scores.double().softmax(dim=1)
    found, classes = probabilities.argmax(dim=1), range(scores.shape[1])
    every = 1 < len(labels.unique()) == len(classes)
    aurocs = [_auroc(probabilities[:, one], labels == one) for one in classes if every]
    # A class that is neither there nor predicted has no F1.
    f1s = [_f1(found == one, labels == one) for one in classes if one in labels or one in found]
    return {
        "auroc": sum(aurocs) / len(aurocs) if every else None,
        "accuracy": _share(found == labels),
        "f1": sum(f1s) / max(1, len(f1s)),
    }


def _auroc(scores: Float[Tensor, " samples"], positive: Bool[Tensor, " samples"]) -> float:
    return auroc(positive.numpy(), scores.double().numpy())


def _f1(found: Bool[Tensor, " samples"], positive: Bool[Tensor, " samples"]) -> float:
    return 2 * int((found & positive).sum()) / (int(found.sum()) + int(positive.sum()))


def _share(right: Bool[Tensor, " samples"]) -> float:
    return int(right.sum()) / max(1, len(right))
