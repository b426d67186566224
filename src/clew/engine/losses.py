"""Losses that are a plain mean over samples, so that parts of a batch add up to the whole.

(PyTorch divides a class-weighted mean by the sum of the weights, which differs from part to part.)
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from clew.errors import InputError


@dataclass(frozen=True, kw_only=True)
class BinaryLoss:
    """Cross-entropy of one logit a sample, where label 1 is positive.

    `focal_gamma` turns attention to what is still wrong: (1 - p)^gamma, p being the probability
    of the true class. `label_smoothing` 0.1 aims at 0.05 and 0.95. `positive_weight` multiplies
    the loss of positive samples.
    """

    focal_gamma: float | None = None
    label_smoothing: float = 0.0
    positive_weight: float | None = None

    def __post_init__(self) -> None:
        _check(self.focal_gamma, self.label_smoothing)
        if self.positive_weight is not None and not self.positive_weight > 0:
            raise InputError(
                "give more than 0.", setting="positive_weight", value=self.positive_weight
            )

    def __call__(
        self, logits: Float[Tensor, " batch"], labels: Shaped[Tensor, " batch"]
    ) -> Float[Tensor, ""]:
        logits, labels = logits.float(), labels.float()
        aims = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        losses = F.binary_cross_entropy_with_logits(logits, aims, reduction="none")
        if self.focal_gamma is not None:
            # log(1 - p) from the logit itself stays finite, and so does its gradient.
            wrong = F.logsigmoid(logits * (1 - 2 * labels))
            losses = losses * torch.exp(self.focal_gamma * wrong)
        if self.positive_weight is not None:
            losses = losses * (1 + (self.positive_weight - 1) * labels)
        return losses.mean()


@dataclass(frozen=True, kw_only=True)
class CategoricalLoss:
    """Cross-entropy of one logit a class; `class_weights` multiply the losses of their samples.

    Labels are classes, or for each sample its share of every class.
    """

    focal_gamma: float | None = None
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _check(self.focal_gamma, self.label_smoothing)
        if self.class_weights is not None and not all(w > 0 for w in self.class_weights):
            raise InputError(f"class_weights are {self.class_weights}: give more than 0 for each.")

    def __call__(
        self,
        logits: Float[Tensor, "batch classes"],
        labels: Shaped[Tensor, " batch"] | Float[Tensor, "batch classes"],
    ) -> Float[Tensor, ""]:
        logits, classes = logits.float(), logits.shape[1]
        shares = F.one_hot(labels.long(), classes).float() if labels.dim() == 1 else labels.float()
        aims = shares * (1 - self.label_smoothing) + self.label_smoothing / classes
        log_probabilities = F.log_softmax(logits, dim=1)
        losses = -(aims * log_probabilities).sum(1)
        if self.focal_gamma is not None:
            wrong = (-torch.expm1(log_probabilities)).clamp_min(1e-8)
            losses = losses * (shares * wrong**self.focal_gamma).sum(1)
        if self.class_weights is not None:
            losses = losses * (shares @ self._weights(logits))
        return losses.mean()

    def _weights(self, logits: Float[Tensor, "batch classes"]) -> Float[Tensor, " classes"]:
        if self.class_weights is None or len(self.class_weights) != logits.shape[1]:
            raise InputError(
                f"class_weights are {self.class_weights}, but the network tells "
                f"{logits.shape[1]} classes apart: give one weight a class."
            )
        return logits.new_tensor(self.class_weights)


def _check(focal_gamma: float | None, label_smoothing: float) -> None:
    if focal_gamma is not None and not focal_gamma >= 0:
        raise InputError("give 0 or more (2 is usual).", setting="focal_gamma", value=focal_gamma)
    if not 0 <= label_smoothing < 1:
        raise InputError(
            "give 0 or more, less than 1.", setting="label_smoothing", value=label_smoothing
        )
