"""The settings of a training run (its photos, its network, how it is trained, and its folder), and
what it reports besides the events of decoding and of the engine."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clew.base.errors import InputError
from clew.base.progress import Event
from clew.base.settings import check_fraction, check_numbers
from clew.base.texts import counted
from clew.engine import PlanRequest, TrainConfig
from clew.loading.splits import Shares
from clew.patterns.photos import USUAL_SHARES
from clew.patterns.presets import AugmentConfig, check_network_name

if TYPE_CHECKING:
    from clew.engine import CategoricalLoss

_FOCAL_GAMMA = 2.0
# A dataset with at least this many training photos gets the usual number of epochs. A GPU
# repeats them in seconds, and from scratch that pays off.
_EPOCHS, _MOST_EPOCHS = 30, 200
_MANY_PHOTOS, _MANY_PHOTOS_ON_GPU = 5_000, 20_000
# A pretrained network needs fewer: this many photos seen, within limits.
_FINE_TUNING_PHOTOS, _FINE_TUNING_EPOCHS = 64_000, (20, 100)
_FINE_TUNING_BATCH, _FINE_TUNING_CROP = 32, 0.35
# The pretrained body learns at this share of the learning rate, and its new head at all of it.
BODY_RATE = 0.3
# For training without a GPU.
USUAL_MINUTES = 5.0
_PATIENCE = 20
_WARM_SHARE, _FEWEST_WARM_EPOCHS = 3, 10
_SIZES = range(16, 1025)

CacheWish = Literal["auto", "ram", "disk"]


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """The loss. `class_weights` gives all classes the same weight, however many photos each has in
    the training split."""

    focal: bool = False
    label_smoothing: float = 0.1
    class_weights: bool = False

    def __post_init__(self) -> None:
        check_numbers(self)
        check_fraction(self, "label_smoothing")

    def build(self, photos: list[int]) -> "CategoricalLoss":
        """`photos` are those of each class in the training split."""
        from clew.engine import CategoricalLoss

        weights = None
        if self.class_weights:
            weights = tuple(sum(photos) / (len(photos) * count) for count in photos)
        return CategoricalLoss(
            focal_gamma=_FOCAL_GAMMA if self.focal else None,
            label_smoothing=self.label_smoothing,
            class_weights=weights,
        )


def usual_train() -> TrainConfig:
    """The default hyperparameters. `epochs` and `patience` are ignored: `PatternsConfig` has its
    own."""
    return TrainConfig(epochs=_EPOCHS, monitor="accuracy")


@dataclass(frozen=True, kw_only=True)
class PatternsConfig:
    """`data` has one folder per class, with or without folders for training, validation and test.

    `start_from` is the folder of an earlier run: training starts from its weights and keeps its
    network, image size and splits. Settings that are None are chosen: `network` and `image_size`
    are then those of `start_from`, or else the pretrained network (with `from_scratch`, one that
    suits the machine) and what suits the photos; `epochs` and `patience` (0 disables early
    stopping) follow; with `tries_augmentations`, validation photos decide on a GPU whether
    RandAugment and Mixup are used; `images_dir` is "images" in `out`. Without a GPU and without
    `epochs`, the pretrained network is trained on features within `minutes`. At a URL, images and
    features are read through `cache_dir`, which may take `cache_size` bytes (see `open_folder`).
    """

    data: Path
    out: Path
    network: str | None = None
    pretrained: bool = False
    from_scratch: bool = False
    image_size: int | None = None
    cache: CacheWish = "auto"
    images_dir: Path | None = None
    cache_dir: Path | None = None
    cache_size: int | None = None
    shares: Shares = USUAL_SHARES
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    tries_augmentations: bool = False
    loss: LossSettings = field(default_factory=LossSettings)
    epochs: int | None = None
    minutes: float | None = None
    patience: int | None = None
    train: TrainConfig = field(default_factory=usual_train)
    request: PlanRequest = field(default_factory=PlanRequest)
    start_from: Path | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_numbers(self)
        checks = {
            "image_size": (
                self.image_size is None or self.image_size in _SIZES,
                f"it must be from {_SIZES[0]} to {_SIZES[-1]} pixels.",
            ),
            "epochs": (self.epochs is None or self.epochs >= 1, "it must be 1 or more."),
            "minutes": (
                self.minutes is None or 0 < self.minutes < math.inf,
                f"it must be greater than 0 ({USUAL_MINUTES:g} is the default).",
            ),
            "patience": (
                self.patience is None or self.patience >= 0,
                "it must be 1 or more, or 0 to disable early stopping.",
            ),
            "shares": (
                min(self.shares) > 0,
                "training, validation (to select the best epoch) and test (to measure accuracy) "
                "must each have a share greater than 0.",
            ),
        }
        for name, (is_valid, rule) in checks.items():
            if not is_valid:
                raise InputError(rule, setting=name, value=getattr(self, name))
        self._check_weights()
        if self.network is not None:
            check_network_name(self.network, pretrained=self.pretrained)

    def _check_weights(self) -> None:
        """Refuse settings that name two kinds of weights to start from."""
        if self.from_scratch and (self.pretrained or self.start_from is not None):
            other = "`pretrained`" if self.pretrained else f'`start_from="{self.start_from}"`'
            raise InputError(
                f"`from_scratch` and {other} contradict each other: give only one of them."
            )
        if self.pretrained and self.start_from is not None:
            raise InputError(
                f'`pretrained` and `start_from="{self.start_from}"` both name weights to start '
                "from: give only one of them (a set starts from scratch with "
                "`overwrite=True`)."
            )

    @property
    def images(self) -> Path:
        """Where photos are decoded to."""
        return self.images_dir if self.images_dir is not None else self.out / "images"

    def train_for(
        self, photos: int, *, on_gpu: bool = False, is_fine_tuned: bool = False
    ) -> TrainConfig:
        """The hyperparameters for this number of photos."""
        epochs = self.epochs
        if epochs is None:
            fine_tuning = fine_tuning_epochs(photos)
            epochs = fine_tuning if is_fine_tuned else usual_epochs(photos, on_gpu=on_gpu)
            if self.start_from is not None:
                epochs = min(epochs, max(_FEWEST_WARM_EPOCHS, epochs // _WARM_SHARE))
        patience = usual_patience(epochs) if self.patience is None else self.patience
        return replace(self.train, epochs=epochs, patience=patience or None)

    def request_for(self, photos: int, *, is_fine_tuned: bool) -> PlanRequest:
        """The request to the hardware plan. A pretrained network is fine-tuned in many small
        steps: the largest batch would be faster, but leave too few of them."""
        if not is_fine_tuned or self.request.batch_size is not None:
            return self.request
        size = min(_FINE_TUNING_BATCH, max(1, photos))
        why = f"to fine-tune a pretrained network on {counted(photos, 'training photo')}"
        return replace(self.request, batch_size=size, reasons={"batch_size": why})

    def augment_for(self, *, flip: bool, is_fine_tuned: bool) -> AugmentConfig:
        """The augmentation with everything decided."""
        crop = _FINE_TUNING_CROP if is_fine_tuned else 1.0
        crop = self.augment.crop if self.augment.crop is not None else crop
        return replace(self.augment, flip=flip, crop=crop)


def fine_tuning_epochs(train_photos: int) -> int:
    """The default number of epochs for a pretrained network."""
    fewest, most = _FINE_TUNING_EPOCHS
    return round(min(most, max(fewest, _FINE_TUNING_PHOTOS / max(1, train_photos))))


def usual_patience(epochs: int) -> int:
    """The default patience. It is long because accuracy stays flat while the learning rate is high,
    and rises as it falls."""
    return max(_PATIENCE, epochs // 3)


def usual_epochs(train_photos: int, *, on_gpu: bool = False) -> int:
    """The default number of epochs. Few photos are seen more often, because the number of steps is
    what matters."""
    many = _MANY_PHOTOS_ON_GPU if on_gpu else _MANY_PHOTOS
    wanted = _EPOCHS * (many / max(1, train_photos)) ** 0.5
    return round(min(_MOST_EPOCHS, max(_EPOCHS, wanted)))


@dataclass(frozen=True, kw_only=True)
class TrainingChoice:
    """A choice, made automatically or on request; `reason` is part of a sentence, with settings in
    backticks."""

    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class Prepared(Event):
    """The photos are decoded and split; training comes next.

    Everything known before its first step: `classes`, `splits` and `excluded` (by kind) are counts
    of photos. `method` says how the network is trained; its value is the expected time in seconds,
    or None if the engine measures it first.
    """

    folder: Path
    classes: dict[str, int]
    splits: dict[str, int]
    excluded: dict[str, int]
    other_files: int
    excluded_file: Path
    image_size: TrainingChoice
    place: TrainingChoice
    flip: TrainingChoice
    epochs: TrainingChoice
    network: TrainingChoice
    method: TrainingChoice
    started_from: Path | None
    new_classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Measuring(Event):
    """Training is over; the model is evaluated on the test photos."""

    def __str__(self) -> str:
        return "evaluating on the test photos"
