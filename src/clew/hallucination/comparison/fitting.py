"""Fits a method with every seed and scores the splits: probes in memory, networks in training."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from clew.errors import ClewError, TrainingStoppedError
from clew.hallucination.comparison.methods import AnyMethod
from clew.hallucination.comparison.networks import NetworkMethod, train_network
from clew.hallucination.comparison.reporter import CompareReporter
from clew.hallucination.comparison.saved import SeedScores
from clew.hallucination.comparison.stores import Store
from clew.hallucination.comparison.trial import Trial
from clew.hallucination.detectors.probes import Method


def score_seeds(
    method: AnyMethod,
    trial: Trial,
    tests: Sequence[Store],
    reporter: CompareReporter,
    should_stop: Callable[[], bool],
) -> list[SeedScores]:
    """One entry a seed; one alone for a method that does not depend on chance. Raises ClewError
    for scores that are no numbers."""
    if isinstance(method, NetworkMethod):
        seeds = train_network(method, trial, tests, reporter, should_stop)
    else:
        seeds = _fit_probe(method, trial, tests, reporter, should_stop)
    for seed in seeds:
        _refuse_strange(seed)
    return seeds


def _fit_probe(
    method: Method,
    trial: Trial,
    tests: Sequence[Store],
    reporter: CompareReporter,
    should_stop: Callable[[], bool],
) -> list[SeedScores]:
    config, made = trial.config, []
    count = config.seeds if method.is_seeded else 1
    for number in range(count):
        if should_stop():
            raise TrainingStoppedError(
                f"stopped before seed {number + 1} of {method.title}; the same command begins the "
                f"method anew."
            )
        reporter.begin_seed(number=number + 1, count=count)
        made.append(_fit_once(method, trial, tests, seed=config.first_seed + number))
    return made


def _fit_once(method: Method, trial: Trial, tests: Sequence[Store], *, seed: int) -> SeedScores:
    data = trial.train.data
    if list(tests) == [trial.train]:
        outcome = method.run(data, seed=seed)
        return SeedScores(
            validation=outcome.validation,
            tests={trial.train.name: outcome.test},
            parameters=outcome.parameters,
            chosen=outcome.chosen,
            by_layer=outcome.by_layer,
            train_seconds=outcome.train_seconds,
            ms_per_answer=1000 * outcome.score_seconds / max(1, len(outcome.test)),
        )
    started = time.perf_counter()
    fitted = method.fit(trial.features, seed=seed)
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
    )


def _refuse_strange(seed: SeedScores) -> None:
    scores = np.concatenate([seed.validation, *seed.tests.values()])
    strange = int((~np.isfinite(scores)).sum())
    if strange:
        raise ClewError(f"{strange:,} of its {len(scores):,} scores are no numbers")
