"""One network to train on photos: everything decided, then built and trained."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clew.engine import CategoricalLoss, FitResult, PlanRequest, Reporter, TrainConfig, fit
from clew.engine.folders import LAST, RESULT
from clew.engine.processes import count_processes
from clew.patterns.augment import AugmentConfig
from clew.patterns.augment.operations import decide_flip
from clew.patterns.cache.samples import choose_place
from clew.patterns.features.fitting import FeaturePlan, fit_on_features, plan_features
from clew.patterns.networks import build_network
from clew.patterns.networks.classifier import PatternClassifier
from clew.patterns.trained.tables import EXCLUDED_FILE
from clew.patterns.training.config import BODY_RATE, PatternsConfig, Prepared, TrainingChoice
from clew.patterns.training.photos import TrainingPhotos, TrainingSamples
from clew.patterns.training.start import NetworkChoice, Start

# This many photos are used to decide on mirroring.
_LOOKED_AT = 2_000


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training run with every setting decided."""

    out: Path
    network: str
    pretrained: bool
    is_fine_tuned: bool
    quick: FeaturePlan | None
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
        classes, known = self.photos.classes, LAST if self.quick is None else RESULT
        network = build_network(
            self.network,
            classes=len(classes),
            image_size=self.photos.size.value,
            # A run that is resumed has its own weights; feature maps are made by these.
            pretrained=self.pretrained and not (self.out / known).exists(),
        )
        if self.start is not None:
            self.start.load_into(network, classes)
        return PatternClassifier(
            network,
            classes=len(classes),
            loss=self.loss,
            augment=self.augment,
            body_rate=BODY_RATE if self.is_fine_tuned else 1.0,
        )

    def fit(
        self, model: PatternClassifier, reporter: Reporter, should_stop: Callable[[], bool]
    ) -> FitResult:
        """Trains it, or resumes it, or loads its result when it is finished.

        The test photos are evaluated afterwards: with the model as it will be loaded.
        """
        common: dict[str, Any] = {
            "config": self.train,
            "request": self.request,
            "output_dir": self.out,
            "settings": self.identity,
            "reporter": reporter,
            "should_stop": should_stop,
        }
        if self.quick is None:
            train, validation = map(self.samples.open_later, ("train", "validation"))
            return fit(model, train, validation, **common)
        photos = self.photos
        return fit_on_features(
            model,
            photos.cached,
            photos.labels,
            photos.splits,
            photos.cached.store.parent / "features",
            plan=self.quick,
            augment=self.augment,
            **common,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What identifies this run; `load_classifier` builds the network from it."""
        augment = asdict(self.augment)
        if not self.augment.is_cropping:  # as runs before there were crops
            del augment["crop"]
        return {
            "network": self.network,
            "classes": list(self.photos.classes),
            "image_size": self.photos.size.value,
            "pretrained": self.pretrained,
            "augment": augment,
            "loss": asdict(self.loss),
            "data": self.photos.identify(),
            "started_from": self.start.digest if self.start else None,
            **({"minutes": self.quick.minutes} if self.quick is not None else {}),
        }


def decide_task(
    config: PatternsConfig,
    network: NetworkChoice,
    photos: TrainingPhotos,
    start: Start | None,
    device: torch.device,
    *,
    spent_seconds: float = 0.0,
) -> tuple[Task, Prepared]:
    """Decides what is left open, and reports it with its reason. `spent_seconds` were over before,
    of the time that was asked for."""
    on_gpu, count = device.type == "cuda", len(photos.places("train"))
    place, why_place = choose_place(
        photos.cached.image_bytes, wanted=config.cache, device=device, processes=count_processes()
    )
    samples = TrainingSamples(photos, place, device)
    fine = network.is_fine_tuned
    train = config.train_for(count, on_gpu=on_gpu, is_fine_tuned=fine)
    flip, why_flip = config.augment.flip, "as requested"
    if flip is None:
        flip, why_flip = decide_flip(*samples.read_some("train", _LOOKED_AT))
    quick = None
    if network.minutes is not None:
        quick = plan_features(
            len(photos.cached.photos),
            photos.size.value,
            minutes=network.minutes,
            spent_seconds=spent_seconds,
        )
    task = Task(
        out=config.out,
        network=network.name,
        pretrained=network.pretrained,
        is_fine_tuned=fine,
        quick=quick,
        photos=photos,
        samples=samples,
        start=start,
        augment=config.augment_for(flip=flip, is_fine_tuned=fine),
        loss=config.loss.build(photos.count_classes("train")),
        train=train,
        request=config.request_for(count, is_fine_tuned=fine),
    )
    about, counts = photos.describe(), Counter(photos.labels.tolist())
    prepared = Prepared(
        folder=photos.folder.root,
        classes={name: counts[label] for label, name in enumerate(photos.classes)},
        splits=about["splits"],
        excluded=about["excluded"],
        other_files=about["other_files"],
        excluded_file=task.out / EXCLUDED_FILE,
        image_size=photos.size,
        started_from=start.folder if start else None,
        new_classes=tuple(name for name in photos.classes if start and name not in start.classes),
        place=TrainingChoice(value=place, reason=why_place),
        flip=TrainingChoice(value=flip, reason=why_flip),
        epochs=TrainingChoice(value=train.epochs, reason=_why_epochs(config, count, fine=fine)),
        network=TrainingChoice(value=network.name, reason=network.reason),
        method=_describe_method(task),
    )
    return task, prepared


def _describe_method(task: Task) -> TrainingChoice:
    """How the network is trained, and why."""
    if task.quick is not None:
        return TrainingChoice(value=task.quick.seconds, reason=task.quick.reason)
    body = f", its body at {BODY_RATE:g} times the learning rate of its head"
    return TrainingChoice(
        value=None, reason=f"the whole network{body if task.is_fine_tuned else ''}"
    )


def _why_epochs(config: PatternsConfig, count: int, *, fine: bool) -> str:
    photos = f"{count:,} training photos"
    if config.epochs is not None:
        return "requested with `epochs`"
    if config.start_from is not None:
        return f"fewer than usual for {photos}, because it does not start from scratch"
    return f"to fine-tune pretrained weights on {photos}" if fine else f"for {photos}"
