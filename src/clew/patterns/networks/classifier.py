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

Photos = UInt8[Tensor, "batch side side 3"]
Pixels = Float[Tensor, "batch 3 side side"]  # the input of a network
Logits = Float[Tensor, "batch classes"]
Maps = tuple[Float[Tensor, "views photos ..."], Float[Tensor, "photos ..."]]


class PatternClassifier(nn.Module):
    """Takes a batch with `image`, uint8 `[batch, side, side, 3]`, and `label`; returns logits
    `[batch, classes]`. Augmentation runs on the batch's device. `body_rate` is the share of the
    learning rate that everything but the network's head is trained with."""

    # Trained in channels_last, whatever the plan: photos are stored so.
    layout = "channels_last"
    maps: Maps | None = None
    network: Any  # its methods are only known at run time

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

    def forward(self, images: Photos) -> Logits:
        return self.network(arrange(self.normalize(images.to(torch.float32) / 255)))

    def learning_rate_scale(self, name: str) -> float:
        head = getattr(self.network, "head_name", None)
        is_head = head is not None and name.startswith(f"network.{head}.")
        return 1.0 if is_head else self._body_rate

    def tune_last_blocks(self, maps: Maps) -> None:
        """Train only the last blocks from now on, on these maps of the training photos, of each in
        several views, and of the validation photos. A batch then has the `index` of each photo
        instead of its image."""
        self.network.train_last_blocks()
        self.maps, self._body_rate = maps, 1.0

    def embed_maps(self, maps: Float[Tensor, "batch rows columns channels"]) -> Tensor:
        return self.network.embed_maps(maps.float().permute(0, 3, 1, 2))

    def training_step(self, batch: Mapping[str, Any]) -> StepOutput:
        labels = batch["label"]
        if not self.training:
            logits = self(batch["image"]) if self.maps is None else self._judge(self._read(batch))
            return StepOutput(loss=self.loss(logits, labels), scores=logits, labels=labels)
        with torch.no_grad():
            seen = self.augment(batch["image"]) if self.maps is None else self._read(batch)
            targets = F.one_hot(labels, self.classes).float()
            if self.mixup is not None:
                seen, targets = self.mixup(seen, targets)
        logits = self._judge(seen)
        return StepOutput(loss=self.loss(logits, targets), scores=logits, labels=labels)

    def _read(self, batch: Mapping[str, Any]) -> Float[Tensor, "batch rows columns channels"]:
        """The maps of a batch; in training, one of each photo's views."""
        assert self.maps is not None
        (views, validation), index = self.maps, batch["index"]
        if not self.training:
            return validation[index].float()
        return views[torch.randint(len(views), index.shape), index].float()

    def _judge(self, seen: Tensor) -> Logits:
        """The logits of images from 0 to 1, or of maps."""
        if self.maps is not None:
            return self.network.classify(self.embed_maps(seen))
        with torch.no_grad():
            seen = self.normalize(seen)
        return self.network(seen if self.training else arrange(seen))


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

    def forward(self, values: Float[Tensor, "batch side side 3"]) -> Pixels:
        return torch.addcmul(self.offset, values, self.scale).permute(0, 3, 1, 2)


def normalize(images: Photos, network: nn.Module) -> Pixels:
    """Decoded photos as the input of this network."""
    scaled = Normalize(input_scaling(network)).to(images.device)
    return arrange(scaled(images.to(torch.float32) / 255))


def arrange(images: Pixels) -> Pixels:
    """Images as a GPU evaluates them. In channels_last, which is faster to train on, cuDNN compiles
    depthwise convolutions for every new number of images, which takes it seconds."""
    return images.contiguous() if images.is_cuda else images


def look_closer(network: nn.Module, pixels: Pixels, logits: Logits) -> Logits:
    """The logits of the mean of two predictions: `logits`, and those for the middle of the images,
    enlarged. A network that is trained on crops sees things larger than in whole photos (arXiv
    1906.06423)."""
    side = pixels.shape[-1]
    edge = round(side * (1 - _CLOSER) / 2)
    middle = pixels[:, :, edge : side - edge, edge : side - edge]
    closer = network(F.interpolate(middle, (side, side), mode="bilinear"))
    likely = torch.stack([logits.log_softmax(dim=1), closer.log_softmax(dim=1)])
    return likely.logsumexp(dim=0)
