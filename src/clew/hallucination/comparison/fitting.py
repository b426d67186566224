"""Fit a method with every seed and score the splits: probes in memory, networks by training."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from clew.base.errors import ClewError, TrainingStoppedError
from clew.base.progress import Event, Reporter
from clew.hallucination.comparison.events import SeedStarted
from clew.hallucination.comparison.methods import AnyMethod, NetworkMethod
from clew.hallucination.comparison.saved import SeedScores
from clew.hallucination.comparison.stores import Store
from clew.hallucination.comparison.trial import Trial
from clew.hallucination.detectors.detector import unfold
from clew.hallucination.detectors.probes import Method
from clew.hallucination.detectors.training import (
    NetworkEnded,
    NetworkStarted,
    TrainedSeed,
    score_samples,
    train_seeds,
)


def score_seeds(
    method: AnyMethod,
    trial: Trial,
    tests: Sequence[Store],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> list[SeedScores]:
    """Fit the method with every seed and score the splits. One entry per seed; a single one for a
    deterministic method. Raises ClewError for non-finite scores."""
    if isinstance(method, NetworkMethod):
        seeds = _train_network(method, trial, tests, reporter, should_stop)
    else:
        seeds = _fit_probe(method, trial, tests, reporter, should_stop)
    for seed in seeds:
        _refuse_strange(seed)
    return seeds


def _fit_probe(
    method: Method,
    trial: Trial,
    tests: Sequence[Store],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> list[SeedScores]:
    made = []
    seeds = trial.seeds if method.is_seeded else trial.seeds[:1]
    for number, seed in enumerate(seeds, start=1):
        if should_stop():
            raise TrainingStoppedError(
                f"stopped before seed {number} of {method.title}; everything so far is saved."
            )
        reporter(SeedStarted(number=number, count=len(seeds)))
        made.append(_fit_once(method, trial, tests, seed=seed))
    return made


def _fit_once(method: Method, trial: Trial, tests: Sequence[Store], *, seed: int) -> SeedScores:
    data = trial.train.data
    if list(tests) == [trial.train]:
        outcome = method.run(trial.data_for(method), seed=seed)
        return SeedScores(
            validation=outcome.validation,
            tests={trial.train.name: outcome.test},
            parameters=outcome.parameters,
            chosen=outcome.chosen,
            by_layer=outcome.by_layer,
            train_seconds=outcome.train_seconds,
            ms_per_answer=1000 * outcome.score_seconds / max(1, len(outcome.test)),
            scorer=outcome.scorer,
        )
    started = time.perf_counter()
    fitted = method.fit(trial.features_for(method), seed=seed)
    train_seconds = time.perf_counter() - started + fitted.shared_seconds
    validation = fitted.score(data, "validation")
    started = time.perf_counter()
    scores = {store.name: fitted.score(store.data, "test") for store in tests}
    score_seconds = time.perf_counter() - started
    count = sum(map(len, scores.values()))
    return SeedScores(
        validation=validation,
        tests=scores,
        parameters=fitted.parameters,
        chosen=fitted.chosen,
        by_layer=None,
        train_seconds=train_seconds,
        ms_per_answer=1000 * score_seconds / max(1, count),
        scorer=fitted.scorer,
    )


def _refuse_strange(seed: SeedScores) -> None:
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
) -> list[SeedScores]:
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
) -> SeedScores:
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
    return SeedScores(
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
