"""What a run of `clew compare` is: its data, its methods, and how the networks are trained."""

from dataclasses import dataclass, field
from pathlib import Path

from clew.engine import PlanRequest, TrainConfig
from clew.errors import InputError
from clew.hallucination.detectors.registry import NetworkSettings
from clew.hallucination.detectors.training import LossSettings, TrainingSettings
from clew.settings import check_positive


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """Folders of `clew preprocess`. Methods are fitted and chosen on the training and validation
    splits of each in `train_on`, and measured on the test split of each in `test_on`; the same
    one in both is the usual comparison. `methods` None takes all."""

    train_on: tuple[Path, ...]
    test_on: tuple[Path, ...]
    output_dir: Path
    methods: tuple[str, ...] | None = None
    seeds: int = 5
    network: NetworkSettings = field(default_factory=NetworkSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    train: TrainConfig = field(default_factory=TrainConfig)
    request: PlanRequest = field(default_factory=PlanRequest)
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "seeds")
        if not (self.train_on and self.test_on):
            raise InputError("there is nothing to compare on: give `preprocessed_dir`.")

    @property
    def is_transfer(self) -> bool:
        return self.train_on != self.test_on or len(self.train_on) > 1

    @property
    def seed_numbers(self) -> range:
        return range(self.train.seed, self.train.seed + self.seeds)

    @property
    def training(self) -> TrainingSettings:
        return TrainingSettings(
            network=self.network, loss=self.loss, train=self.train, request=self.request
        )
