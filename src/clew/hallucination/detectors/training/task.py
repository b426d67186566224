"""One network to train: its samples, its loss, its folder, and what is written about it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from clew.engine import BinaryLoss, Classifier, FitResult, HardwarePlan, Reporter, fit
from clew.engine.checkpoint import LAST
from clew.engine.folders import clear_run
from clew.engine.result import RESULT
from clew.engine.trainer import only_one
from clew.engine.versions import read_versions
from clew.hallucination.detectors.registry import NetworkKind, configure
from clew.hallucination.detectors.training.config import TrainRunConfig
from clew.hallucination.detectors.training.results import LIBRARY, Run
from clew.hallucination.detectors.training.samples import DetectorSamples
from clew.settings import offer_overwrite


@dataclass(frozen=True, kw_only=True)
class Task:
    """`network_config` is the network's own, with the sizes of the samples in it."""

    config: TrainRunConfig
    kind: NetworkKind
    network_config: Any
    samples: DetectorSamples
    folder: Path

    @classmethod
    def open(
        cls, config: TrainRunConfig, kind: NetworkKind, samples: DetectorSamples, folder: Path
    ) -> Self:
        """Raises InputError for settings that cannot be."""
        network_config = configure(kind, samples.sizes(), config.network)
        return cls(
            config=config, kind=kind, network_config=network_config, samples=samples, folder=folder
        )

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
        with offer_overwrite():
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

    def follow(self, plan: HardwarePlan) -> Self:
        """The same task with nothing left to measure: it is trained as that plan says."""
        request = replace(
            self.config.request,
            device=plan.device,
            precision=plan.precision,
            amp=None,
            compile=plan.compile,
            cuda_graph=plan.cuda_graph,
            channels_last=plan.channels_last,
            num_workers=plan.num_workers,
            batch_size=plan.batch_size,
            grad_accum=plan.grad_accum,
            calibrate=False,
        )
        return replace(self, config=replace(self.config, request=request))

    def clear(self) -> None:
        """Take away what was trained before; raises StoreLockedError rather than take away what
        another run is writing."""
        with only_one(self.folder):
            clear_run(self.folder)

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
            "folder": self.folder.relative_to(self.config.output_dir).as_posix(),
            "config": asdict(self.network_config),
            "loss": asdict(self.loss),
            "train": asdict(self.config.train),
            "plan": fitted.plan.to_dict(),
            "versions": read_versions(LIBRARY),
        }
