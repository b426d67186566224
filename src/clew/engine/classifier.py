"""Makes any network that returns logits trainable, with losses for classification."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from clew.base.errors import InputError
from clew.engine.protocols import StepOutput


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
        scores = _check_logits(logits, labels)
        loss = self.loss(scores, labels)
        for further in extra.values():
            loss = loss + further
        return StepOutput(loss=loss, scores=scores, labels=labels, metrics=extra)


def _check_logits(
    logits: Tensor, labels: Tensor
) -> Float[Tensor, " batch"] | Float[Tensor, "batch classes"]:
    if logits.dim() == 2 and logits.shape[1] == 1:
        logits = logits[:, 0]
    if logits.dim() not in (1, 2) or logits.shape[0] != labels.shape[0]:
        raise InputError(
            f"the network returns logits of shape {tuple(logits.shape)} for {labels.shape[0]} "
            "labels: it must return one logit per sample, [batch], or one per class, [batch, "
            "classes]."
        )
    return logits


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
        _check(self.focal_gamma, self.label_smoothing)
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
        _check(self.focal_gamma, self.label_smoothing)
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
            losses = losses * (shares @ self._weights(logits))
        return losses.mean()

    def _weights(self, logits: Float[Tensor, "batch classes"]) -> Float[Tensor, " classes"]:
        if self.class_weights is None or len(self.class_weights) != logits.shape[1]:
            raise InputError(
                f"class_weights are {self.class_weights}, but the network has "
                f"{logits.shape[1]} classes: give one weight per class."
            )
        return logits.new_tensor(self.class_weights)


def _check(focal_gamma: float | None, label_smoothing: float) -> None:
    if focal_gamma is not None and not focal_gamma >= 0:
        raise InputError(
            "it must be 0 or more (2 is typical).", setting="focal_gamma", value=focal_gamma
        )
    if not 0 <= label_smoothing < 1:
        raise InputError(
            "it must be at least 0 and less than 1.",
            setting="label_smoothing",
            value=label_smoothing,
        )
