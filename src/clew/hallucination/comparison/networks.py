"""Networks as methods of a comparison: trained with every seed by `detectors.training`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import logit

from clew.engine import HardwarePlan, Progress
from clew.hallucination.comparison.reporter import CompareReporter
from clew.hallucination.comparison.saved import SeedScores
from clew.hallucination.comparison.stores import Store
from clew.hallucination.detectors.kinds import FORMS
from clew.hallucination.detectors.registry import NETWORKS, NetworkKind, NetworkSettings
from clew.hallucination.detectors.training import SeedScores as Trained
from clew.hallucination.detectors.training import TrainRunConfig, score_samples, train_seeds
from clew.hallucination.detectors.training.sources import PreprocessedData

if TYPE_CHECKING:
    from clew.hallucination.comparison.trial import Trial

# As near to 0 and 1 as a float32 tells probabilities apart.
_SURE = 1e-7


@dataclass(frozen=True, kw_only=True)
class NetworkMethod:
    """A network beside the probes; `needs` are kinds of samples."""

    kind: NetworkKind
    family: Literal["network"] = "network"
    is_seeded: bool = True
    also_reads: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def title(self) -> str:
        return self.kind.title

    @property
    def needs(self) -> tuple[str, ...]:
        return FORMS[self.kind.samples].stores

    @property
    def reads_edges(self) -> bool:
        """Whether it follows the attention from token to token."""
        return self.kind.samples in ("graphs", "heads")


NETWORK_METHODS = [NetworkMethod(kind=kind) for kind in NETWORKS.values()]


def train_network(
    method: NetworkMethod,
    trial: "Trial",
    tests: Sequence[Store],
    reporter: CompareReporter,
    should_stop: Callable[[], bool],
) -> list[SeedScores]:
    """Train the network from every seed, or go on with it; score the test splits of `tests`."""
    first = trial.config.first_seed
    seeds = range(first, first + trial.config.seeds)
    config = _train_config(method, trial)
    trained = train_seeds(config, method.name, seeds, _Seeds(reporter), should_stop)
    return [_collect(method, trial, tests, one) for one in trained]


def _train_config(method: NetworkMethod, trial: "Trial") -> TrainRunConfig:
    config = trial.config
    given = config.network.given().items()
    own = {name: value for name, value in given if name in method.kind.setting_names}
    return TrainRunConfig(
        preprocessed_dir=trial.train.folder,
        output_dir=trial.networks_folder,
        networks=(method.name,),
        network=NetworkSettings(**own),  # type: ignore[arg-type]  # as they were given
        loss=config.loss,
        train=config.train,
        request=config.request,
    )


def _collect(
    method: NetworkMethod, trial: "Trial", tests: Sequence[Store], one: Trained
) -> SeedScores:
    folder = trial.networks_folder / method.name / f"seed-{one.seed}"
    device = one.fitted.plan.device
    scores = {
        store.name: _unfold(
            one.test
            if store is trial.train
            else score_samples(folder, PreprocessedData(folder=store.folder), "test", device=device)
        )
        for store in tests
    }
    return SeedScores(
        validation=_unfold(one.validation),
        tests=scores,
        parameters=one.fitted.parameters,
        chosen={"epoch": one.fitted.best_epoch},
        by_layer=None,
        train_seconds=one.fitted.seconds,
        ms_per_answer=1000 * one.score_seconds / max(1, len(one.test)),
        plan=one.fitted.plan.to_dict(),
    )


def _unfold(probabilities: np.ndarray) -> np.ndarray:
    """The logits: calibration fits a straight line, as it does to the scores of probes."""
    return logit(np.clip(probabilities.astype(np.float64), _SURE, 1 - _SURE)).astype(np.float32)


class _Seeds:
    """Tells the comparison's reporter what training tells: its networks are seeds of one."""

    def __init__(self, reporter: CompareReporter) -> None:
        self._reporter = reporter

    def begin_network(self, title: str, *, number: int, count: int) -> None:  # noqa: ARG002
        self._reporter.begin_seed(number=number, count=count)

    def end_network(self, run: dict[str, Any], *, is_new: bool) -> None:
        """All seeds are told of together."""

    def say(self, message: str) -> None:
        self._reporter.say(message)

    def begin(self, plan: HardwarePlan, *, epochs: int, steps: int, done_steps: int) -> None:
        self._reporter.begin(plan, epochs=epochs, steps=steps, done_steps=done_steps)

    def advance(self, progress: Progress) -> None:
        self._reporter.advance(progress)

    def epoch(self, row: dict[str, Any]) -> None:
        self._reporter.epoch(row)

    def end(self) -> None:
        self._reporter.end()
