"""Evaluates a model on batches it is not trained on, shared by all processes: losses, AUROC,
accuracy and F1, the last two at a threshold chosen on validation."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor, nn

from clew.base.errors import InputError, TrainingError
from clew.base.texts import counted, list_some
from clew.engine.batches import count_samples, sample_names
from clew.engine.feed import build_courier
from clew.engine.planning.plan import HardwarePlan
from clew.engine.precision import build_precision
from clew.engine.processes import gather
from clew.engine.protocols import Batches, StepOutput
from clew.metrics import auroc, best_threshold

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from clew.engine.precision import Precision

Metrics = dict[str, float | None]


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
    part, courier = _Part(), build_courier(fabric.device, channels_last=channels_last)
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
        self._metric_names = ("loss", *output.metrics)
        self._means.append(
            torch.stack([value.float() for value in (output.loss, *output.metrics.values())])
        )
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


def score(model: nn.Module, batches: Batches, plan: HardwarePlan, fabric: "Fabric") -> Evaluation:
    """Score all samples. If only fp16 gives non-finite scores, fp32 is used instead; otherwise they
    raise TrainingError."""
    result = _evaluate(model, batches, plan, fabric)
    if result.unusable and plan.precision == "fp16":
        plan = plan.change("precision", "fp32", "fp16 produced non-finite scores")
        result = _evaluate(model, batches, plan, fabric)
    if result.unusable:
        raise TrainingError(
            f"the network's scores for {counted(len(result.unusable), 'sample')} are non-finite "
            f"({list_some(result.unusable)}): their data may contain NaN or infinity. Exclude "
            "them."
        )
    return result


def _evaluate(
    model: nn.Module, batches: Batches, plan: HardwarePlan, fabric: "Fabric"
) -> Evaluation:
    precision = build_precision(plan.precision, fabric.device)
    return evaluate(model, batches, fabric, precision, channels_last=plan.channels_last)


def score_metrics(
    scores: Float[Tensor, " samples"] | Float[Tensor, "samples classes"],
    labels: Shaped[Tensor, " samples"],
    threshold: float | None = None,
) -> Metrics:
    """Metrics of logits on the CPU. An undefined metric is None: AUROC if all labels are the same,
    F1 without a positive sample."""
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
