"""An autoencoder whose embedding puts correct answers near each other and hallucinated ones away
from them: supervised contrastive loss (Khosla et al., 2020) plus reconstruction of the input. Not a
detector by itself: new answers are compared with the embedded training answers."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from clew.engine import StepOutput

_SIZE, _INPUT_DROPOUT, _DROPOUT = 64, 0.2, 0.3
_TEMPERATURE = 0.1  # divides the similarities in the contrastive loss
_RECONSTRUCTION_WEIGHT = 0.1


class ContrastiveAutoencoder(nn.Module):
    """Takes batches with `features` `[batch, inputs]` and `label`. `known` are the training
    answers, with which others are compared when it is evaluated."""

    def __init__(
        self, known: Float[Tensor, "answers inputs"], labels: Tensor, hidden: int = 128
    ) -> None:
        super().__init__()
        inputs = known.shape[1]
        self.encoder = nn.Sequential(
            nn.Dropout(_INPUT_DROPOUT),
            nn.Linear(inputs, hidden),
            nn.ReLU(),
            nn.Dropout(_DROPOUT),
            nn.Linear(hidden, _SIZE),
        )
        self.decoder = nn.Sequential(nn.Linear(_SIZE, hidden), nn.ReLU(), nn.Linear(hidden, inputs))
        self._known, self._labels = known, labels

    @property
    def layers(self) -> list[nn.Linear]:
        """The linear layers of the encoder."""
        return [part for part in self.encoder if isinstance(part, nn.Linear)]

    def training_step(self, batch: Mapping[str, Any]) -> StepOutput:
        labels = batch["label"]
        views = batch["features"].repeat(2, 1)  # which dropout makes different
        latent = self.encoder(views)
        extra = {
            "contrast": contrast(latent, labels, _TEMPERATURE),
            "reconstruction": _RECONSTRUCTION_WEIGHT * F.mse_loss(self.decoder(latent), views),
        }
        scores = None if self.training else self._score(latent[: len(labels)])
        return StepOutput(
            loss=sum(extra.values(), torch.zeros(())), scores=scores, labels=labels, metrics=extra
        )

    def _score(self, latent: Float[Tensor, "batch size"]) -> Float[Tensor, " batch"]:
        near = F.normalize(latent) @ F.normalize(self.encoder(self._known)).T
        weights = near / _TEMPERATURE
        is_hallucinated = self._labels > 0
        return weights[:, is_hallucinated].logsumexp(1) - weights[:, ~is_hallucinated].logsumexp(1)


def contrast(
    latent: Float[Tensor, "views size"], labels: Int[Tensor, " answers"], temperature: float
) -> Float[Tensor, ""]:
    """The supervised contrastive loss of two views per answer, first one of each, then the other:
    of every view, the mean negative log-probability of its partners among all other views. A
    correct answer's partners are all views of correct answers; a hallucinated one's is only its own
    other view, since answers go wrong in different ways."""
    directions, count = F.normalize(latent), len(labels)
    itself = torch.eye(2 * count, dtype=torch.bool, device=latent.device)
    similar = (directions @ directions.T / temperature).masked_fill(itself, -torch.inf)
    log_probabilities = similar.log_softmax(1).masked_fill(itself, 0)
    answers, correct = torch.arange(count, device=latent.device).repeat(2), labels.repeat(2) == 0
    is_partner = (answers[:, None] == answers) | (correct[:, None] & correct)
    is_partner = is_partner & ~itself
    return -((log_probabilities * is_partner).sum(1) / is_partner.sum(1)).mean()


class FeatureBatches:
    """Features in memory as batches. The engine seeds the generator that shuffles them."""

    def __init__(
        self,
        features: Float[Tensor, "answers inputs"],
        labels: Int[Tensor, " answers"],
        batch_size: int,
        *,
        shuffle: bool = False,
    ) -> None:
        self._features, self._labels = features, labels
        self._batch_size, self._shuffle = batch_size, shuffle

    def __len__(self) -> int:
        return -(-len(self._labels) // self._batch_size)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        count = len(self._labels)
        order = torch.randperm(count) if self._shuffle else torch.arange(count)
        for rows in order.split(self._batch_size):
            yield {"features": self._features[rows], "label": self._labels[rows]}
