"""The model to train: a network that sees augmented images in training, and plain ones in
evaluation; and how pixels become its input."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from clew.engine import CategoricalLoss, StepOutput
from clew.patterns.augment import AugmentConfig, Mixup, RandAugment

# The share of the side that a closer look at a photo shows.
_CLOSER = 0.8


class InputScaling(NamedTuple):
    """Values from 0 to 1 are scaled to `(value - mean) / std`, per channel (red, green, blue)."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET = InputScaling(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class PatternClassifier(nn.Module):
    """Takes a batch with `image`, uint8 `[batch, side, side, 3]`, and `label`; returns logits
    `[batch, classes]`. Augmentation runs on the batch's device. `body_rate` is the share of the
    learning rate that everything but the network's head is trained with."""

    def __init__(
        self,
        network: nn.Module,
        *,
        classes: int,
        loss: CategoricalLoss | None = None,
        augment: AugmentConfig | None = None,
        body_rate: float = 1.0,
    ) -> None:
        super().__init__()
        augment = augment or AugmentConfig.nothing()
        self.network, self.classes, self._body_rate = network, classes, body_rate
        self.loss = loss or CategoricalLoss()
        self.augment = RandAugment(augment)
        self.mixup = Mixup(augment.mixup) if augment.mixup else None
        self.normalize = Normalize(input_scaling(network))

    def forward(self, images: UInt8[Tensor, "batch side side 3"]) -> Float[Tensor, "batch classes"]:
        return self.network(self.normalize(images.to(torch.float32) / 255))

    def learning_rate_scale(self, name: str) -> float:
        head = getattr(self.network, "head_name", None)
        is_head = head is not None and name.startswith(f"network.{head}.")
        return 1.0 if is_head else self._body_rate

    def training_step(self, batch: Mapping[str, Any]) -> StepOutput:
        images, labels = batch["image"], batch["label"]
        if not self.training:
            logits = self(images)
            return StepOutput(loss=self.loss(logits, labels), scores=logits, labels=labels)
        with torch.no_grad():
            seen, targets = self.augment(images), F.one_hot(labels, self.classes).float()
            if self.mixup is not None:
                seen, targets = self.mixup(seen, targets)
            seen = self.normalize(seen)
        logits = self.network(seen)
        return StepOutput(loss=self.loss(logits, targets), scores=logits, labels=labels)


def input_scaling(network: nn.Module) -> InputScaling:
    """The scaling of a network's input: its own `scaling`, or else ImageNet's mean and standard
    deviation."""
    found = getattr(network, "scaling", IMAGENET)
    return found if isinstance(found, InputScaling) else IMAGENET


class Normalize(nn.Module):
    """Turns values from 0 to 1 in rows of pixels into a network's input: `[batch, 3, side, side]`,
    in channels_last, without a copy for the change of order."""

    scale: Tensor
    offset: Tensor

    def __init__(self, scaling: InputScaling = IMAGENET) -> None:
        super().__init__()
        std = torch.tensor(scaling.std)
        self.register_buffer("scale", 1 / std, persistent=False)
        self.register_buffer("offset", -torch.tensor(scaling.mean) / std, persistent=False)

    def forward(
        self, values: Float[Tensor, "batch side side 3"]
    ) -> Float[Tensor, "batch 3 side side"]:
        return torch.addcmul(self.offset, values, self.scale).permute(0, 3, 1, 2)


def normalize(
    images: UInt8[Tensor, "batch side side 3"], network: nn.Module
) -> Float[Tensor, "batch 3 side side"]:
    """Decoded photos as the input of this network."""
    scaled = Normalize(input_scaling(network)).to(images.device)
    return scaled(images.to(torch.float32) / 255)


def look_closer(
    network: nn.Module, pixels: Float[Tensor, "batch 3 side side"], logits: Tensor
) -> Float[Tensor, "batch classes"]:
    """The logits of the mean of two predictions: `logits`, and those for the middle of the images,
    enlarged. A network that is trained on crops sees things larger than in whole photos (arXiv
    1906.06423)."""
    side = pixels.shape[-1]
    edge = round(side * (1 - _CLOSER) / 2)
    middle = pixels[:, :, edge : side - edge, edge : side - edge]
    closer = network(F.interpolate(middle, (side, side), mode="bilinear"))
    likely = torch.stack([logits.log_softmax(dim=1), closer.log_softmax(dim=1)])
    return likely.logsumexp(dim=0)
