"""Fit methods on the workers of a cluster. What they fitted lies in the comparison's folder, where
the comparison itself finds it as it finds that of an earlier run."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from clew.base.progress import Reporter, WorkAdvanced, WorkStarted, ignore_event, report_work
from clew.base.urls import resolved
from clew.cluster import Cluster, Spread, connected, spread
from clew.hallucination.comparison.fitting import find_or_fit
from clew.hallucination.comparison.methods import AnyMethod, find_methods
from clew.hallucination.comparison.plan import Plan
from clew.hallucination.comparison.settings import CompareConfig
from clew.hallucination.comparison.trial import explain_failure

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
        (n, one) for n, trial in enumerate(plan.trials) for one in ordered if trial.can_run(one)
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
