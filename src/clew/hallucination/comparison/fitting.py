"""Fit a method with every seed and score the splits: probes in memory, networks by training."""

from collections.abc import Callable, Sequence

import numpy as np

from clew.base.errors import ClewError, TrainingStoppedError
from clew.base.progress import Event, Reporter
from clew.hallucination.comparison.events import SeedStarted
from clew.hallucination.comparison.measuring import pick_median
from clew.hallucination.comparison.methods import AnyMethod, NetworkMethod
from clew.hallucination.comparison.stores import Store
from clew.hallucination.comparison.trial import Trial
from clew.hallucination.detectors.detector import unfold
from clew.hallucination.detectors.probes.method import Method, Outcome
from clew.hallucination.detectors.probes.registry import can_be_kept
from clew.hallucination.detectors.training.samples import score_samples
from clew.hallucination.detectors.training.settings import NetworkEnded, NetworkStarted
from clew.hallucination.detectors.training.train import TrainedSeed, train_seeds
from clew.metrics import auroc


def find_or_fit(
    method: AnyMethod,
    trial: Trial,
    tests: Sequence[Store],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> tuple[list[Outcome], bool]:
    """The scores of all seeds, and whether they are new: those of an earlier run are read. One
    entry per seed; a single one for a deterministic method. Raises ClewError for non-finite
    scores."""
    identity = trial.identify(method)
    seeds = trial.saved.find(method.name, identity)
    if seeds is not None:
        return seeds, False
    fit = _train_network if isinstance(method, NetworkMethod) else _fit_probe
    seeds = fit(method, trial, tests, reporter, should_stop)  # type: ignore[arg-type]
    for seed in seeds:
        _refuse_strange(seed)
    # The seed with the median validation AUROC is measured. A network is in its own folder already.
    labels = trial.train.data.labels["validation"]
    middle = pick_median([auroc(labels, seed.validation) for seed in seeds])
    scorer = seeds[middle].scorer
    if scorer is not None and can_be_kept(scorer):
        trial.saved.keep_scorer(method.name, scorer)
    trial.saved.add(method.name, identity, seeds)
    return seeds, True


def _fit_probe(
    method: Method,
    trial: Trial,
    tests: Sequence[Store],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> list[Outcome]:
    made = []
    seeds = trial.seeds if method.is_seeded else trial.seeds[:1]
    data = trial.features_for(method, tests)
    # If only `train` is tested, it is the same data for both.
    is_alone = list(tests) == [trial.train]
    tested = {store.name: data if is_alone else store.data for store in tests}
    for number, seed in enumerate(seeds, start=1):
        if should_stop():
            raise TrainingStoppedError(
                f"stopped before seed {number} of {method.title}; everything so far is saved."
            )
        reporter(SeedStarted(number=number, count=len(seeds)))
        made.append(method.run(data, tested, seed=seed))
    return made


def _refuse_strange(seed: Outcome) -> None:
    scores = np.concatenate([seed.validation, *seed.tests.values()])
    strange = int((~np.isfinite(scores)).sum())
    if strange:
        raise ClewError(
            f"{strange:,} of its {len(scores):,} scores are non-finite (NaN or infinity)"
        )


def _train_network(
    method: NetworkMethod,
    trial: Trial,
    tests: Sequence[Store],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> list[Outcome]:
    """Train the network from every seed, or resume; score the test splits of `tests`."""
    trained = train_seeds(
        method.name,
        trial.train.source,
        trial.training,
        trial.networks_folder,
        trial.seeds,
        reporter=_tell_as_seeds(reporter),
        should_stop=should_stop,
    )
    return [_collect(method, trial, tests, one) for one in trained]


def _collect(
    method: NetworkMethod, trial: Trial, tests: Sequence[Store], one: TrainedSeed
) -> Outcome:
    folder = trial.networks_folder / method.name / f"seed-{one.seed}"
    device = one.fitted.plan.device
    scores = {
        store.name: unfold(
            one.test
            if store is trial.train
            else score_samples(folder, store.source, "test", device=device)
        )
        for store in tests
    }
    return Outcome(
        validation=unfold(one.validation),
        tests=scores,
        parameters=one.fitted.parameters,
        chosen={"epoch": one.fitted.best_epoch},
        by_layer=None,
        train_seconds=one.fitted.seconds,
        ms_per_answer=1000 * one.score_seconds / max(1, len(one.test)),
        plan=one.fitted.plan.to_dict(),
    )


def _tell_as_seeds(reporter: Reporter) -> Reporter:
    """A reporter that turns the events of training networks into events of seeds: here each network
    is one seed of a method."""

    def report(event: Event) -> None:
        if isinstance(event, NetworkStarted):
            reporter(SeedStarted(number=event.number, count=event.count))
        elif not isinstance(event, NetworkEnded):
            reporter(event)

    return report
