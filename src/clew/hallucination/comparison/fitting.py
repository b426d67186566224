"""Fit a method with every seed and score the splits, here or on the workers of a cluster; and what
a comparison reports meanwhile."""

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from clew.base.errors import ClewError, TrainingStoppedError
from clew.base.progress import Event, Reporter, WorkAdvanced, WorkStarted, ignore_event, report_work
from clew.base.texts import duration_text
from clew.base.urls import resolved
from clew.cluster.connection import Cluster, connected
from clew.cluster.workers import Spread, spread
from clew.hallucination.comparison.evaluation import pick_median
from clew.hallucination.comparison.methods import AnyMethod, NetworkMethod, find_methods
from clew.hallucination.comparison.plan import Plan
from clew.hallucination.comparison.settings import CompareConfig
from clew.hallucination.comparison.stores import Store
from clew.hallucination.comparison.trial import Trial, explain_failure
from clew.hallucination.detectors.detector import unfold
from clew.hallucination.detectors.probes.method import Method, Outcome
from clew.hallucination.detectors.probes.registry import can_be_kept
from clew.hallucination.detectors.training.samples import score_samples
from clew.hallucination.detectors.training.settings import NetworkEnded, NetworkStarted
from clew.hallucination.detectors.training.train import TrainedSeed, train_seeds
from clew.metrics.ranking import auroc


@dataclass(frozen=True, kw_only=True)
class StoreStarted(Event):
    """Methods are about to be fitted on the `number`-th of `count` stores, from 1.
    `seconds_left` is an estimate for all of them."""

    name: str
    number: int
    count: int
    seconds_left: float | None = None

    def __str__(self) -> str:
        left = self.seconds_left
        about = "" if left is None else f", about {duration_text(left)} left"
        return f"trained on {self.name} ({self.number} of {self.count}{about})"


@dataclass(frozen=True, kw_only=True)
class MethodStarted(Event):
    """The `number`-th of `count` methods, from 1, is about to be fitted."""

    title: str
    number: int
    count: int

    def __str__(self) -> str:
        return f"method {self.number} of {self.count}: {self.title}"


@dataclass(frozen=True, kw_only=True)
class SeedStarted(Event):
    """The method is about to be fitted with the `number`-th of `count` seeds, counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"seed {self.number} of {self.count}"


@dataclass(frozen=True, kw_only=True)
class MethodEnded(Event):
    """A method is finished. `row` is its row of results.json; `is_new` is False if an earlier run
    finished it."""

    row: dict[str, Any]
    seconds: float
    is_new: bool

    def __str__(self) -> str:
        return f"{self.row['method']}: {self.reached}"

    @property
    def reached(self) -> str:
        took, (low, high) = "already done", self.row["test_auroc_ci"]
        if self.is_new:
            short = self.seconds < 10
            took = f"in {self.seconds:.1f} s" if short else f"in {duration_text(self.seconds)}"
        return (
            f"validation AUROC {self.row['val_auroc']:.3f}, "
            f"test {self.row['test_auroc']:.3f} [{low:.3f}, {high:.3f}], {took}"
        )


@dataclass(frozen=True, kw_only=True)
class MethodExcluded(Event):
    """A method is excluded: its data is missing, or it failed."""

    level: ClassVar[int] = logging.WARNING
    title: str
    reason: str

    def __str__(self) -> str:
        return f"{self.title} is excluded: {self.reason}"


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
    scores = np.concatenate([part for s in seeds for part in (s.validation, *s.tests.values())])
    strange = int((~np.isfinite(scores)).sum())
    if strange:
        raise ClewError(
            f"{strange:,} of its {len(scores):,} scores are non-finite (NaN or infinity)"
        )
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
    seeds = trial.config.seed_numbers[: None if method.is_seeded else 1]
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
        trial.config,
        trial.networks_folder,
        trial.config.seed_numbers,
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


# A method in a trial, by number and name.
Fit = tuple[int, str]


def fit_on_cluster(
    config: CompareConfig,
    plan: Plan,
    make_plan: Callable[[CompareConfig, Sequence[AnyMethod]], Plan],
    methods: Sequence[AnyMethod],
    where: Spread,
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> None:
    """Fit what is missing, networks first: they take longest. On GPUs only these, then the others
    on all cores."""
    ordered = sorted(methods, key=lambda method: method.family != "network")
    fits = [
        (n, one)
        for n, trial in enumerate(plan.trials)
        for one in ordered
        if trial.tested_by(one) and trial.refuse_reason(one) is None
    ]
    missing = [
        (n, one.name)
        for n, one in fits
        if plan.trials[n].saved.find(one.name, plan.trials[n].identify(one)) is None
    ]
    if not missing:
        return
    worker = replace(
        config,
        out=resolved(config.out),
        train_on=tuple(map(resolved, config.train_on)),
        test_on=tuple(map(resolved, config.test_on)),
        overwrite=False,
    )
    setup = functools.partial(_open, worker, make_plan)
    started = WorkStarted(noun="fits", planned=len(fits), done=len(fits) - len(missing))
    networks = {one.name for one in methods if one.family == "network"}
    with report_work(reporter, started), connected(where.cluster) as cluster:
        for there, some in split_by_hardware(where, cluster, missing, networks):
            for _ in spread(there, setup, some, reporter, should_stop, noun="fit"):
                reporter(WorkAdvanced())


def split_by_hardware(
    where: Spread, cluster: Cluster, fits: Sequence[Fit], networks: Collection[str]
) -> list[tuple[Spread, list[Fit]]]:
    """Where to fit what, in this order."""
    if not cluster.gpus or where.device == "cpu":
        return [(where, list(fits))]
    on_gpus = [fit for fit in fits if fit[1] in networks]
    others = [fit for fit in fits if fit[1] not in networks]
    parts = [(where, on_gpus), (replace(where, device="cpu"), others)]
    return [part for part in parts if part[1]]


def _open(
    config: CompareConfig, make_plan: Callable[[CompareConfig, Sequence[AnyMethod]], Plan]
) -> Callable[[Fit], bool]:
    """In a worker."""
    methods = find_methods(config.methods)
    plan = make_plan(config, methods)
    return functools.partial(_fit, plan, {method.name: method for method in methods})


def _fit(plan: Plan, methods: Mapping[str, AnyMethod], fit: Fit) -> bool:
    """Whether it could be fitted. The comparison tries what could not again, and says why."""
    number, name = fit
    trial, method = plan.trials[number], methods[name]
    try:
        find_or_fit(method, trial, trial.tested_by(method), ignore_event, lambda: False)
    except Exception as error:
        explain_failure(name, method.title, error, folder=trial.saved.folder)
        return False
    return True
