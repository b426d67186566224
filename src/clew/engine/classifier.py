"""Any network that gives logits for a batch, made trainable."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from clew.engine.losses import BinaryLoss
from clew.engine.protocols import StepOutput
from clew.errors import InputError


class Classifier(nn.Module):
    """`network(batch)` gives logits `[batch]`, `[batch, 1]` or `[batch, classes]`, or
    `(logits, {"kl": ...})`: further losses, already weighted, which are added and reported.

    The batch bears its labels as `batch["label"]`. A loss of one's own takes logits and labels
    and gives the mean over the samples.
    """

    def __init__(
        self, network: nn.Module, loss: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.network = network
        self.loss = loss or BinaryLoss()

    @property
    def pad_batch(self) -> Callable[[Any], Any] | None:
        """How the network's batches are brought to few shapes, where they differ."""
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
            f"the network gives logits of shape {tuple(logits.shape)} for {labels.shape[0]} "
            f"labels: it must give one a sample, [batch], or one a class, [batch, classes]."
        )
    return logits
