"""One network to train on photos: how it is built, fitted, and told from others."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from clew.engine import CategoricalLoss, FitResult, Reporter, TrainConfig, fit
from clew.patterns.augment import AugmentConfig, decide_flip
from clew.patterns.classifier import PatternClassifier
from clew.patterns.networks import build_network, usual_network
from clew.patterns.training.config import PatternsConfig
from clew.patterns.training.photos import TrainingPhotos, TrainingSamples
from clew.patterns.training.reporter import Choice
from clew.patterns.training.start import Start

# As many photos are looked at to decide on mirroring.
_LOOKED_AT = 2_000


@dataclass(frozen=True, kw_only=True)
class Task:
    """All that a training needs, decided: `augment` and `train` have nothing open any more."""

    config: PatternsConfig
    network: str
    photos: TrainingPhotos
    samples: TrainingSamples
    start: Start | None
    augment: AugmentConfig
    train: TrainConfig

    @property
    def loss(self) -> CategoricalLoss:
        return self.config.loss.build(self.photos.count_classes("train"))

    def build(self) -> PatternClassifier:
        """The network to begin with, the same for the same seed."""
        torch.manual_seed(self.train.seed)
        classes = self.photos.classes
        network = build_network(
            self.network,
            classes=len(classes),
            image_size=self.photos.size.value,
            pretrained=self.config.pretrained,
        )
        if self.start is not None:
            self.start.load_into(network, classes)
        return PatternClassifier(
            network, classes=len(classes), loss=self.loss, augment=self.augment
        )

    def fit(
        self, model: PatternClassifier, reporter: Reporter, should_stop: Callable[[], bool]
    ) -> FitResult:
        """Train it, or go on with it, or find its result when it is finished. The test photos are
        looked at afterwards: what is measured is the model as it will be loaded."""
        return fit(
            model,
            self.samples.open_later("train"),
            self.samples.open_later("validation"),
            config=self.train,
            request=self.config.request,
            output_dir=self.config.output_dir,
            settings=self.identity,
            reporter=reporter,
            should_stop=should_stop,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this run from others; `load_model` builds the network from it."""
        return {
            "network": self.network,
            "classes": list(self.photos.classes),
            "image_size": self.photos.size.value,
            "pretrained": self.config.pretrained,
            "augment": asdict(self.augment),
            "loss": asdict(self.loss),
            "data": self.photos.identify(),
            "started_from": self.start.digest if self.start else None,
        }


def settle_network(config: PatternsConfig, start: Start | None, *, on_gpu: bool) -> Choice:
    if config.network is not None:
        return Choice(value=config.network, reason="as asked for")
    if start is not None:
        return Choice(value=start.network, reason="that of the weights it starts from")
    name, reason = usual_network(on_gpu=on_gpu)
    return Choice(value=name, reason=reason)


def settle_augment(wished: AugmentConfig, samples: TrainingSamples) -> tuple[AugmentConfig, Choice]:
    """The same with mirroring decided, and why."""
    if wished.flip is not None:
        return wished, Choice(value=wished.flip, reason="as asked for")
    flip, reason = decide_flip(*samples.read_some("train", _LOOKED_AT))
    return replace(wished, flip=flip), Choice(value=flip, reason=reason)
