"""One network to train: its samples, loss and folder; and results.json with the results and
settings of every network in an output folder."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

import torch

from clew.base.errors import SettingsMismatchError, StoreError
from clew.base.settings import offer_overwrite, with_current_names
from clew.base.texts import shortened
from clew.base.typed_json import Bounds, read_as, without_nan
from clew.engine import BinaryLoss, Classifier, FitResult, HardwarePlan, Reporter, fit
from clew.engine.folders import LAST, RESULT, clear_run, only_one
from clew.engine.identity import read_versions
from clew.hallucination.detectors.registry import NETWORKS, NetworkKind, configure
from clew.hallucination.detectors.training.config import TrainingSettings
from clew.hallucination.detectors.training.samples import DetectorSamples
from clew.storage.places import ChangedError
from clew.storage.reading import read_json
from clew.storage.writing import lock_file, replace_json

RESULTS_FILE = "results.json"
# An additional dependency of networks on graphs.
LIBRARY = "torch-geometric"

Run = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One network to train. `network_config` holds its hyperparameters, including the dimensions of
    the samples; `place` is its folder, relative to the output folder."""

    kind: NetworkKind
    network_config: Any
    training: TrainingSettings
    samples: DetectorSamples
    output_dir: Path
    place: str
    title: str

    @classmethod
    def open(
        cls,
        kind: NetworkKind,
        training: TrainingSettings,
        samples: DetectorSamples,
        output_dir: Path,
    ) -> Self:
        """Create the task of a network. Raises InputError for invalid settings."""
        return cls(
            kind=kind,
            network_config=configure(kind, samples.sizes(), training.network),
            training=training,
            samples=samples,
            output_dir=output_dir,
            place=kind.name,
            title=kind.title,
        )

    def seeded(self, seed: int) -> Self:
        """The same with another seed, in its own folder."""
        return replace(
            self,
            training=self.training.seeded(seed),
            place=f"{self.kind.name}/seed-{seed}",
            title=f"{self.kind.title}, seed {seed}",
        )

    @property
    def folder(self) -> Path:
        return self.output_dir / self.place

    @property
    def is_finished(self) -> bool:
        return (self.folder / LAST).exists() and (self.folder / RESULT).exists()

    @property
    def loss(self) -> BinaryLoss:
        return self.training.loss.build(self.samples.positive_weight)

    def build(self) -> Classifier:
        """The untrained network, the same for the same seed."""
        torch.manual_seed(self.training.train.seed)
        return Classifier(self.kind.build(self.network_config), self.loss)

    def fit(self, reporter: Reporter, should_stop: Callable[[], bool]) -> FitResult:
        """Train the network, resume its training, or return the result if it is finished."""
        with offer_overwrite():
            return fit(
                self.build(),
                self.samples.open_later("train"),
                self.samples.open_later("validation"),
                test=self.samples.open_later("test"),
                config=self.training.train,
                request=self.training.request,
                output_dir=self.folder,
                settings=self._identity(),
                reporter=reporter,
                should_stop=should_stop,
            )

    def follow(self, plan: HardwarePlan) -> Self:
        """The same task with everything planned: it is trained as the plan says."""
        request = replace(
            self.training.request,
            device=plan.device,
            precision=plan.precision,
            amp=None,
            compile=plan.compile,
            cuda_graph=plan.cuda_graph,
            channels_last=plan.channels_last,
            num_workers=plan.num_workers,
            batch_size=plan.batch_size,
            grad_accum=plan.grad_accum,
            threads=plan.threads,
            calibrate=False,
            reasons=plan.reasons,
        )
        return replace(self, training=replace(self.training, request=request))

    def clear(self) -> None:
        """Remove what was trained before; raises StoreLockedError if another run is writing it."""
        with only_one(self.folder):
            clear_run(self.folder)

    def _identity(self) -> dict[str, Any]:
        """What identifies this run; `load_detector` builds the network from it."""
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
            "seed": self.training.train.seed,
            "folder": self.place,
            "config": asdict(self.network_config),
            "loss": asdict(self.loss),
            "train": asdict(self.training.train),
            "plan": fitted.plan.to_dict(),
            "versions": read_versions(LIBRARY),
        }


class ResultsFile:
    """The runs of an existing folder, one per network; adding one keeps the others."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RESULTS_FILE

    def find(self, model: str) -> Run | None:
        return next((run for run in self._read()["runs"] if run["model"] == model), None)

    def refuse_other_data(self, data: dict[str, Any], retrained: Iterable[str]) -> None:
        """Raise SettingsMismatchError if the runs to be kept used other samples: all rows of a
        table must be evaluated on the same ones."""
        saved = self._read()
        stay = [run["model"] for run in saved["runs"] if run["model"] not in set(retrained)]
        if not stay or saved["data"] == data:
            return
        before, now = (_describe(described) for described in (saved["data"], data))
        raise SettingsMismatchError(
            f'"{self.path.parent}" has results of {" and ".join(stay)} on different samples: '
            f"{before} before, {now} now. Choose another `out`, or train all of them again with "
            "`overwrite=True`."
        )

    def add(self, run: Run, *, data: dict[str, Any], settings: dict[str, Any]) -> None:
        """Replace an earlier run of the same network."""

        def add(saved: dict[str, Any]) -> dict[str, Any]:
            runs = {old["model"]: old for old in saved["runs"]} | {run["model"]: run}
            ordered = [runs.pop(name) for name in NETWORKS if name in runs]
            return {"runs": [*ordered, *runs.values()], "data": data, "settings": settings}

        self._change(add)

    def remove(self, models: Iterable[str]) -> None:
        gone = set(models)

        def remove(saved: dict[str, Any]) -> dict[str, Any]:
            return {**saved, "runs": [run for run in saved["runs"] if run["model"] not in gone]}

        self._change(remove)

    def _change(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Under a lock on this machine, and again where a process on another one was faster:
        another network may be training into the same folder."""
        with lock_file(self.path.parent / ".results.lock"):
            while (content := change(saved := self._read())) != saved:
                with suppress(ChangedError):
                    self._write(content)
                    return

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {"runs": [], "data": {}, "settings": {}}
        try:
            content = read_as(
                dict[str, Any], without_nan(read_json(self.path, finite=False, encodable=False))
            )
            runs = read_as(list[dict[str, Any]], content.get("runs"), "runs")
            for run in runs:
                read_as(Annotated[str, Bounds(most=100)], run.get("model"), "model")
            data = with_current_names(read_as(dict[str, Any], content.get("data"), "data"))
        except (OSError, ValueError) as error:
            raise StoreError(
                f'"{self.path}" cannot be read ({error}): delete it and run the same command '
                "again to re-create it (the trained networks are kept), or choose another `out`."
            ) from None
        return {"settings": {}, **content, "data": data}

    def _write(self, content: dict[str, Any]) -> None:
        ordered = {name: content[name] for name in ("runs", "data", "settings")}
        replace_json(self.path, {**ordered, "versions": read_versions(LIBRARY)})


def _describe(data: dict[str, Any]) -> str:
    counts = [
        f"{name} {sum(count for count in of.values() if isinstance(count, int)):,}"
        for name, of in data.items()
        if isinstance(of, dict)
    ]
    return f"{', '.join(counts)} (questions {shortened(data.get('questions', 'unknown'))})"
