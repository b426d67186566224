"""The settings of `clew train`: data, networks, training and output."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.base.errors import InputError
from clew.base.progress import Event
from clew.base.settings import check_fraction, check_numbers
from clew.engine import PlanRequest, TrainConfig
from clew.hallucination.detectors.registry import (
    USUAL_NETWORKS,
    NetworkSettings,
    find_networks,
    refuse_unused,
)
from clew.hallucination.labels import HigherIs

if TYPE_CHECKING:
    from clew.engine import BinaryLoss
    from clew.hallucination.detectors.training.samples import DataSource

_FOCAL_GAMMA = 2.0
_SCORE_THRESHOLD = 0.5
# The default output of "clew preprocess".
SAMPLES_FOLDER = Path("preprocessed_data")
_CONVERTED = "traces_store"
# They change how long training takes, but not the result.
_HARMLESS = ("num_workers", "max_cache_batches", "threads", "calibrate")


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """The loss function. `class_weights` gives both classes the same total weight, whatever their
    number of training samples."""

    focal: bool = False
    label_smoothing: float = 0.0
    class_weights: bool = False

    def __post_init__(self) -> None:
        check_numbers(self)
        check_fraction(self, "label_smoothing")

    def build(self, positive_weight: float) -> "BinaryLoss":
        """Build the loss; `positive_weight` balances both classes."""
        from clew.engine import BinaryLoss

        return BinaryLoss(
            focal_gamma=_FOCAL_GAMMA if self.focal else None,
            label_smoothing=self.label_smoothing,
            positive_weight=positive_weight if self.class_weights else None,
        )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How networks are trained: everything that determines the result besides the samples."""

    network: NetworkSettings = field(default_factory=NetworkSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    train: TrainConfig = field(default_factory=TrainConfig)
    request: PlanRequest = field(default_factory=PlanRequest)

    def describe(self) -> dict[str, Any]:
        """The settings as plain data, for results.json."""
        return {
            "train": asdict(self.train),
            "request": self.request.describe(),
            "network": self.network.chosen(),
            "loss": asdict(self.loss),
        }

    def identify(self) -> dict[str, Any]:
        """The settings that identify a run: those of `describe` that change the result."""
        told = self.describe()
        request = {k: v for k, v in told["request"].items() if k not in _HARMLESS}
        return {**told, "request": request}


@dataclass(frozen=True, kw_only=True)
class TrainRunConfig(TrainingSettings):
    """The settings of `clew train`. Samples come from `preprocessed_dir`, or from `data_pattern` (a
    trace store, or legacy files such as "traces_data/*.pkl*") with `scores_file`."""

    preprocessed_dir: Path | None = None
    data_pattern: str | Path | None = None
    scores_file: Path | None = None
    score_threshold: float | None = None
    higher_is: HigherIs | None = None
    cache_dir: str | Path | None = None
    out: Path = Path("results")
    networks: tuple[str, ...] = USUAL_NETWORKS
    overwrite: bool = False
    keep_at_chance: bool = False

    def __post_init__(self) -> None:
        check_numbers(self)
        refuse_unused(self.network, find_networks(self.networks))
        if self.data_pattern is None:
            for name in ("scores_file", "score_threshold", "higher_is"):
                if getattr(self, name) is not None:
                    raise InputError(
                        "it only applies to `data_pattern`, since preprocessed samples already "
                        'have labels. Omit it, or give it to "clew preprocess".',
                        setting=name,
                        value=getattr(self, name),
                    )
        elif self.preprocessed_dir is not None:
            raise InputError(
                f'`data_pattern="{self.data_pattern}"` was given too. Use only one of them.',
                setting="preprocessed_dir",
                value=self.preprocessed_dir,
            )
        elif self.scores_file is None:
            raise InputError(
                "traces have no labels. Give their scores as well, with `scores_file` (written "
                'by "clew label").',
                setting="data_pattern",
                value=self.data_pattern,
            )

    def open_samples(self) -> Path:
        """The folder of samples; see `clew.hallucination.samples.index.open_samples`."""
        from clew.hallucination.samples.index import open_samples

        return open_samples(self.preprocessed_dir or SAMPLES_FOLDER, cache_dir=self.cache_dir)

    def open_source(self) -> "DataSource":
        """Where the samples come from. Legacy files are converted into a store first;
        that of an earlier run is reused."""
        from clew.hallucination.detectors.training.samples import (
            PreprocessedData,
            RawData,
            open_traces,
        )
        from clew.hallucination.samples.raw import RawSamples

        if self.data_pattern is None or self.scores_file is None:
            return PreprocessedData(folder=self.open_samples())
        threshold = self.score_threshold
        traces = RawSamples(
            store=open_traces(self.data_pattern, converted=self.out / _CONVERTED),
            scores_file=self.scores_file,
            score_threshold=_SCORE_THRESHOLD if threshold is None else threshold,
            higher_is=self.higher_is,
        )
        return RawData(traces=traces)


@dataclass(frozen=True, kw_only=True)
class NetworkStarted(Event):
    """The `number`-th of `count` networks, from 1, is about to be planned and trained."""

    title: str
    number: int
    count: int

    def __str__(self) -> str:
        return f"network {self.number} of {self.count}: {self.title}"


@dataclass(frozen=True, kw_only=True)
class NetworkEnded(Event):
    """A network is trained. `run` is its entry in results.json; `is_new` is False if an earlier run
    trained it."""

    run: dict[str, Any]
    is_new: bool

    def __str__(self) -> str:
        done = "trained" if self.is_new else "already trained"
        return f"{self.run['model']}: {done}, test AUROC {self.run['test_auroc']}"
