"""One network to train: its samples, its loss, its folder, and what is written about it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clew.detect.config import TrainRunConfig
from clew.detect.networks import NetworkKind
from clew.detect.results import Run, read_versions
from clew.detect.samples import DetectorSamples
from clew.engine import BinaryLoss, Classifier, FitResult, Reporter, fit
from clew.engine.checkpoint import LAST
from clew.engine.result import RESULT


@dataclass(frozen=True, kw_only=True)
class Task:
    """`network_config` is the network's own, with the sizes of the samples in it."""

    config: TrainRunConfig
    kind: NetworkKind
    network_config: Any
    samples: DetectorSamples

    @property
    def folder(self) -> Path:
        return self.config.output_dir / self.kind.name

    @property
    def is_finished(self) -> bool:
        return (self.folder / LAST).exists() and (self.folder / RESULT).exists()

    @property
    def loss(self) -> BinaryLoss:
        return self.config.loss.build(self.samples.positive_weight)

    def build(self) -> Classifier:
        """The untrained network, the same for the same seed."""
        torch.manual_seed(self.config.train.seed)
        return Classifier(self.kind.build(self.network_config), self.loss)

    def fit(self, reporter: Reporter, should_stop: Callable[[], bool]) -> FitResult:
        """Train it, or go on with it, or find its result when it is finished."""
        return fit(
            self.build(),
            self.samples.open_later("train"),
            self.samples.open_later("validation"),
            test=self.samples.open_later("test"),
            config=self.config.train,
            request=self.config.request,
            output_dir=self.folder,
            settings=self._identity(),
            reporter=reporter,
            should_stop=should_stop,
        )

    def _identity(self) -> dict[str, Any]:
        """What tells this run from others; `load_detector` builds the network from it."""
        return {
            "network": self.kind.name,
            "network_config": asdict(self.network_config),
            "loss": asdict(self.loss),
            "data": {**self.samples.describe(), "values": self.samples.hash_values()},
        }

    def describe(self, fitted: FitResult) -> Run:
        """The entry of results.json."""
        test = fitted.test or {}
        return {
            "model": self.kind.name,
            "title": self.kind.title,
            **{f"test_{name}": test.get(name) for name in ("auroc", "f1", "accuracy", "loss")},
            "best_val_auroc": fitted.best_val.get("auroc"),
            "threshold": fitted.threshold,
            "best_epoch": fitted.best_epoch,
            "epochs_run": len(fitted.history),
            "parameters": fitted.parameters,
            "seconds": fitted.seconds,
            "samples_per_second": fitted.samples_per_second,
            "data_wait_share": fitted.data_wait_share,
            "peak_memory_bytes": fitted.peak_memory_bytes,
            "seed": self.config.train.seed,
            "folder": self.kind.name,
            "config": asdict(self.network_config),
            "loss": asdict(self.loss),
            "train": asdict(self.config.train),
            "plan": fitted.plan.to_dict(),
            "versions": read_versions(),
        }
