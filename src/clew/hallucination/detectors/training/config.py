"""What a run of `clew train` is: its data, its networks, how they are trained, and where to."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clew.engine import BinaryLoss, PlanRequest, TrainConfig
from clew.errors import InputError
from clew.hallucination.detectors.registry import (
    USUAL_NETWORKS,
    NetworkSettings,
    find_networks,
    refuse_unused,
)

_FOCAL_GAMMA = 2.0
_SCORE_THRESHOLD = 0.5


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """How wrong scores are counted. `class_weights` makes both classes weigh the same, however
    many samples each has in the training split."""

    focal: bool = False
    label_smoothing: float = 0.0
    class_weights: bool = False

    def __post_init__(self) -> None:
        self.build(1.0)  # refuses values that make no sense

    def build(self, positive_weight: float) -> BinaryLoss:
        """`positive_weight` is what makes both classes weigh the same."""
        return BinaryLoss(
            focal_gamma=_FOCAL_GAMMA if self.focal else None,
            label_smoothing=self.label_smoothing,
            positive_weight=positive_weight if self.class_weights else None,
        )


@dataclass(frozen=True, kw_only=True)
class TrainRunConfig:
    """Samples come from `preprocessed_dir`, or from `data_pattern` (a store of traces, or files of
    the older tools such as "traces_data/*.pkl*") with `scores_file`."""

    preprocessed_dir: Path | None = None
    data_pattern: str | None = None
    scores_file: Path | None = None
    score_threshold: float | None = None
    output_dir: Path = Path("results")
    networks: tuple[str, ...] = USUAL_NETWORKS
    network: NetworkSettings = field(default_factory=NetworkSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    train: TrainConfig = field(default_factory=TrainConfig)
    request: PlanRequest = field(default_factory=PlanRequest)
    overwrite: bool = False

    def __post_init__(self) -> None:
        refuse_unused(self.network, find_networks(self.networks))
        if self.data_pattern is None:
            self._refuse_trace_settings()
        elif self.preprocessed_dir is not None:
            raise InputError(
                f'`data_pattern="{self.data_pattern}"` names samples too: give one of them.',
                setting="preprocessed_dir",
                value=self.preprocessed_dir,
            )
        elif self.scores_file is None:
            raise InputError(
                'traces have no labels: give their scores too, with `scores_file` (as "clew label" '
                "writes them).",
                setting="data_pattern",
                value=self.data_pattern,
            )

    def _refuse_trace_settings(self) -> None:
        for name in ("scores_file", "score_threshold"):
            if getattr(self, name) is not None:
                raise InputError(
                    "it goes with `data_pattern`: preprocessed samples have their labels already. "
                    'Leave it out, or give it to "clew preprocess".',
                    setting=name,
                    value=getattr(self, name),
                )

    @property
    def threshold(self) -> float:
        """The score below which an answer counts as made up."""
        return _SCORE_THRESHOLD if self.score_threshold is None else self.score_threshold

    def describe(self) -> dict[str, Any]:
        """How the networks are trained, for results.json."""
        return {
            "train": asdict(self.train),
            "request": asdict(self.request),
            "network": self.network.given(),
            "loss": asdict(self.loss),
        }
