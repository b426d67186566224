"""How good scores are: AUROC, accuracy and F1, the last two at a threshold chosen on validation."""

from jaxtyping import Float, Int64, Shaped
from torch import Tensor

Metrics = dict[str, float | None]


def score_metrics(
    scores: Float[Tensor, " samples"] | Float[Tensor, "samples classes"],
    labels: Shaped[Tensor, " samples"],
    threshold: float | None = None,
) -> Metrics:
    """Metrics of logits on the CPU. A figure that is not defined is None: AUROC where the
    labels are all of one class, F1 without a positive one to find."""
    if scores.dim() == 1:
        return _binary(scores, labels.long(), 0.5 if threshold is None else threshold)
    return _multiclass(scores, labels.long())


def _binary(
    scores: Float[Tensor, " samples"], labels: Int64[Tensor, " samples"], threshold: float
) -> Metrics:
    from torchmetrics.functional.classification import (  # takes seconds
        binary_accuracy,
        binary_auroc,
        binary_f1_score,
    )

    probabilities = scores.double().sigmoid()
    positives = int(labels.sum())
    both = 0 < positives < len(labels)
    return {
        # Of logits: as probabilities, far ones would be the same number.
        "auroc": float(binary_auroc(_ranks(scores), labels)) if both else None,
        "accuracy": float(binary_accuracy(probabilities, labels, threshold)),
        "f1": float(binary_f1_score(probabilities, labels, threshold)) if positives else None,
    }


def _ranks(scores: Float[Tensor, " samples"]) -> Float[Tensor, " samples"]:
    """Scores as numbers from 0 to 1 in the same order, equal where the scores are."""
    _, places = scores.unique(return_inverse=True)
    return places.double() / max(1, int(places.max()))


def _multiclass(
    scores: Float[Tensor, "samples classes"], labels: Int64[Tensor, " samples"]
) -> Metrics:
    from torchmetrics.functional.classification import (
        multiclass_accuracy,
        multiclass_auroc,
        multiclass_f1_score,
    )

    classes = scores.shape[1]
    probabilities = scores.double().softmax(dim=1)
    every = len(labels.unique()) == classes
    auroc = multiclass_auroc(probabilities, labels, classes, average="macro") if every else None
    return {
        "auroc": None if auroc is None else float(auroc),
        "accuracy": float(multiclass_accuracy(probabilities, labels, classes, average="micro")),
        "f1": float(multiclass_f1_score(probabilities, labels, classes, average="macro")),
    }
