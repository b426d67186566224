"""One network to train on photos: everything decided, then built and trained."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from clew.engine import CategoricalLoss, FitResult, PlanRequest, Reporter, TrainConfig, fit
from clew.engine.processes import count_processes
from clew.patterns.augment import AugmentConfig, decide_flip
from clew.patterns.cache import choose_place
from clew.patterns.classifier import PatternClassifier
from clew.patterns.networks import build_network, usual_network
from clew.patterns.photos import SPLITS
from clew.patterns.trained.tables import EXCLUDED_FILE
from clew.patterns.training.config import PatternsConfig
from clew.patterns.training.events import Prepared, TrainingChoice
from clew.patterns.training.photos import TrainingPhotos, TrainingSamples
from clew.patterns.training.start import Start

# This many photos are used to decide on mirroring.
_LOOKED_AT = 2_000


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training run with every setting decided."""

    out: Path
    network: str
    pretrained: bool
    photos: TrainingPhotos
    samples: TrainingSamples
    start: Start | None
    augment: AugmentConfig
    loss: CategoricalLoss
    train: TrainConfig
    request: PlanRequest

    def build(self) -> PatternClassifier:
        """The initial network, the same for the same seed."""
        torch.manual_seed(self.train.seed)
        classes = self.photos.classes
        network = build_network(
            self.network,
            classes=len(classes),
            image_size=self.photos.size.value,
            pretrained=self.pretrained,
        )
        if self.start is not None:
            self.start.load_into(network, classes)
        return PatternClassifier(
            network, classes=len(classes), loss=self.loss, augment=self.augment
        )

    def fit(
        self, model: PatternClassifier, reporter: Reporter, should_stop: Callable[[], bool]
    ) -> FitResult:
        """Trains it, or resumes it, or loads its result when it is finished.

        The test photos are evaluated afterwards: with the model as it will be loaded.
        """
        return fit(
            model,
            self.samples.open_later("train"),
            self.samples.open_later("validation"),
            config=self.train,
            request=self.request,
            output_dir=self.out,
            settings=self.identity,
            reporter=reporter,
            should_stop=should_stop,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What identifies this run; `load_classifier` builds the network from it."""
        return {
            "network": self.network,
            "classes": list(self.photos.classes),
            "image_size": self.photos.size.value,
            "pretrained": self.pretrained,
            "augment": asdict(self.augment),
            "loss": asdict(self.loss),
            "data": self.photos.identify(),
            "started_from": self.start.digest if self.start else None,
        }


def decide_task(
    config: PatternsConfig, photos: TrainingPhotos, start: Start | None, device: torch.device
) -> tuple[Task, Prepared]:
    """Decides what is left open, and reports it with its reason."""
    on_gpu, count = device.type == "cuda", len(photos.places("train"))
    place = _decide_place(photos, config.cache, device)
    network = _decide_network(config.network, start, on_gpu=on_gpu)
    train = config.train_for(count, on_gpu=on_gpu)
    epochs = TrainingChoice(value=train.epochs, reason=_why_epochs(config.epochs, start, count))
    samples = TrainingSamples(photos, place.value, device)
    flip = _decide_flip(config.augment.flip, samples)
    task = Task(
        out=config.out,
        network=network.value,
        pretrained=config.pretrained,
        photos=photos,
        samples=samples,
        start=start,
        augment=replace(config.augment, flip=flip.value),
        loss=config.loss.build(photos.count_classes("train")),
        train=train,
        request=config.request,
    )
    return task, _tell(task, place=place, flip=flip, epochs=epochs, network=network)


def _decide_place(photos: TrainingPhotos, wanted: str, device: torch.device) -> TrainingChoice:
    place, reason = choose_place(
        photos.cached.image_bytes, wanted=wanted, device=device, processes=count_processes()
    )
    return TrainingChoice(value=place, reason=reason)


def _decide_network(wanted: str | None, start: Start | None, *, on_gpu: bool) -> TrainingChoice:
    if wanted is not None:
        return TrainingChoice(value=wanted, reason="as requested")
    if start is not None:
        return TrainingChoice(value=start.network, reason="from the weights that it starts from")
    name, reason = usual_network(on_gpu=on_gpu)
    return TrainingChoice(value=name, reason=reason)


def _decide_flip(wanted: bool | None, samples: TrainingSamples) -> TrainingChoice:
    if wanted is not None:
        return TrainingChoice(value=wanted, reason="as requested")
    flip, reason = decide_flip(*samples.read_some("train", _LOOKED_AT))
    return TrainingChoice(value=flip, reason=reason)


def _why_epochs(wanted: int | None, start: Start | None, count: int) -> str:
    if wanted is not None:
        return "requested with `epochs`"
    if start is not None:
        return (
            f"fewer than usual for {count:,} training photos, because it does not start from "
            "scratch"
        )
    return f"for {count:,} training photos"


def _tell(task: Task, **decided: TrainingChoice) -> Prepared:
    photos, start = task.photos, task.start
    counts = Counter(photos.classes[label] for label in photos.labels.tolist())
    about = photos.describe()
    return Prepared(
        folder=photos.folder.root,
        classes={name: counts[name] for name in photos.classes},
        splits={split: about["splits"][split] for split in SPLITS},
        excluded=about["excluded"],
        other_files=about["other_files"],
        excluded_file=task.out / EXCLUDED_FILE,
        image_size=photos.size,
        started_from=start.folder if start else None,
        new_classes=tuple(name for name in photos.classes if start and name not in start.classes),
        **decided,
    )
