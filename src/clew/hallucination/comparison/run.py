"""Run the methods one after another and write their results side by side."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew.base.errors import InputError, TrainingStoppedError
from clew.base.progress import Note, Reporter, StepStarted, log_event, report_work
from clew.base.tables import Tabular
from clew.cluster.workers import Spread
from clew.engine import plan_hardware
from clew.engine.folders import make_folder, only_one
from clew.engine.torchrun import count_processes
from clew.hallucination.comparison.detectors import keep_detectors, names_to_keep
from clew.hallucination.comparison.evaluation import (
    Evaluation,
    evaluate,
    measure_method,
    refuse_empty,
)
from clew.hallucination.comparison.fitting import (
    MethodEnded,
    MethodExcluded,
    MethodStarted,
    StoreStarted,
    find_or_fit,
    fit_on_cluster,
)
from clew.hallucination.comparison.methods import AnyMethod, count_bytes, find_methods, list_methods
from clew.hallucination.comparison.plan import Plan, make_plan, tell_shared
from clew.hallucination.comparison.settings import CompareConfig
from clew.hallucination.comparison.stores import Store, open_stores, tell_prompts
from clew.hallucination.comparison.trial import (
    OTHER_BASIS,
    Excluded,
    Trial,
    TrialResult,
    explain_failure,
)
from clew.hallucination.comparison.writing import COMPARISON_FILES, make_table, write_comparison
from clew.hallucination.detectors.detector import Detector
from clew.hallucination.detectors.detector_folder import load_detector
from clew.hallucination.detectors.folder import KEPT
from clew.hallucination.detectors.probes.registry import list_package_methods
from clew.hallucination.samples.answers import FieldMemory
from clew.metrics.ranking import RESAMPLES

_REPORT_FILE = "report.html"


@dataclass(frozen=True, kw_only=True, repr=False)
class ComparisonResult(Tabular):
    """A finished comparison: its folder, the contents of its results.json, and the methods that
    failed because of a bug in clew."""

    folder: Path
    results: dict[str, Any]
    faults: tuple[Excluded, ...]

    @property
    def table(self) -> pa.Table:
        """One row per method, the best on validation first; the columns are those of table.csv."""
        return make_table(self.results["methods"])

    @property
    def best(self) -> str:
        """The method with the highest validation AUROC."""
        return self.results["best"]["method"]

    @property
    def detector(self) -> Detector:
        """The detector of the best method, loaded. Raises StoreError if none was kept."""
        return load_detector(self.folder / KEPT)

    @property
    def report(self) -> Path:
        """The report, a page that works offline."""
        return self.folder / _REPORT_FILE

    def __repr__(self) -> str:
        methods = self.results["methods"]
        auroc = next(row["test_auroc"] for row in methods if row["method"] == self.best)
        return (
            f"ComparisonResult({len(methods)} methods; best: {self.best}, test AUROC {auroc:.3f}; "
            f"{self.folder})"
        )


def compare_methods(
    config: CompareConfig,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    where: Spread | None = None,
) -> ComparisonResult:
    """Run the methods of `config` and write results.json, table.csv, table.tex and scores.arrow.
    With `where`, the workers of a cluster fit them.

    The same call again resumes: finished methods are not run again. Unusable input raises
    InputError before anything is run; a folder with scores of other data or settings raises
    SettingsMismatchError; `should_stop` returning true raises TrainingStoppedError. A method whose
    data is missing or that fails is excluded and listed.
    """
    reporter = reporter or log_event
    methods = find_methods(config.methods)
    plan = _prepare(config, methods)
    with only_one(config.out):
        _clear_or_check((*plan.trials, plan.final), methods, overwrite=config.overwrite)
        for sentence in (*tell_shared(plan), *_tell_others(config, plan, methods)):
            reporter(Note(sentence))
        if where is not None:
            fit_on_cluster(config, plan, _prepare, methods, where, reporter, should_stop)
        run = _Run(plan=plan, reporter=reporter, should_stop=should_stop)
        results = [run.run(trial, methods) for trial in plan.trials]
        excluded = [one for result in results for one in result.excluded]
        has_rows = any(rows for result in results for rows in result.measured.values())
        refuse_empty(has_rows, excluded)
        with report_work(reporter, StepStarted(name="computing intervals and paired tests")):
            evaluation = evaluate(plan, results)
        kept, told = _keep(config, evaluation, run, methods)
        settings = _describe_settings(config, methods, evaluation.trial)
        content = write_comparison(config.out, methods, evaluation, kept, told, settings, reporter)
    faults = tuple(one for one in excluded if one.is_fault)
    return ComparisonResult(folder=config.out, results=content, faults=faults)


def _prepare(config: CompareConfig, methods: Sequence[AnyMethod]) -> Plan:
    """Open the stores and plan the trials. Whatever can be rejected is rejected here, before the
    first method runs."""
    if count_processes() > 1:
        raise InputError(
            f"a comparison runs in one process, but torchrun started {count_processes()}: run "
            '"clew compare" without torchrun.'
        )
    if any(method.family == "network" for method in methods):
        plan_hardware(config.request)  # rejects a device that does not exist
    folders = [*config.train_on, *config.test_on]
    # Several trials read the same fields.
    is_repeated = config.folds or config.by_set or len(config.train_on) > 1
    memory = FieldMemory() if is_repeated else None
    stores = open_stores(folders, config.names, memory)
    plan = make_plan(config, stores)
    trials = (*plan.trials, plan.final)
    inner = {trial.folder.relative_to(config.out).parts[:1] for trial in trials}
    names = (*COMPARISON_FILES, *(name for parts in inner for name in parts))
    make_folder(config.out, *names, command="compare")
    return plan


def _clear_or_check(
    trials: Sequence[Trial], methods: Sequence[AnyMethod], *, overwrite: bool
) -> None:
    for trial in trials:
        for method in methods:
            if overwrite:
                trial.clear(method)
            elif trial.refuse_reason(method) is None:
                # a mismatch must raise now, not after hours
                trial.saved.find(method.name, trial.identify(method))


def _tell_others(config: CompareConfig, plan: Plan, methods: Sequence[AnyMethod]) -> list[str]:
    """Methods that are not requested now: those of installed packages, and those that were run
    here before."""
    done = {name for trial in plan.trials for name in trial.saved.names()}
    installed, told = list_package_methods(), []
    if installed and config.methods is None:
        told.append(
            f"installed packages provide further methods: {', '.join(installed)}. They run if you "
            "name them in `methods`"
        )
    known = (*list_methods(), *installed)
    others = [name for name in known if name in done - {one.name for one in methods}]
    if others:
        told.append(
            f'"{config.out}" also has results for {", ".join(others)}: they are kept, but the '
            "table and the report contain only the current `methods`"
        )
    return told


def _keep(
    config: CompareConfig, evaluation: Evaluation, run: "_Run", methods: Sequence[AnyMethod]
) -> tuple[dict[str, str], str | None]:
    """Keep the detectors of the final trial; a trial of its own first fits what is kept."""
    final = evaluation.plan.final
    names = names_to_keep(config.keep_detectors, evaluation.measured)
    result = evaluation.find(final)
    if names:
        for sentence in tell_prompts(final.train):
            run.reporter(Note(sentence))
    if result is None:
        result = run.run(final, [method for method in methods if method.name in names.values()])
    return keep_detectors(evaluation, result, names, run.reporter)


def _describe_settings(
    config: CompareConfig, methods: Sequence[AnyMethod], trial: Trial
) -> dict[str, Any]:
    return {
        "methods": [method.name for method in methods],
        "seeds": config.seeds,
        "resamples": RESAMPLES,
        **config.describe(),
        "preprocess": trial.train.data.settings.get("preprocess", {}),
        "folders": [f"{folder}" for folder in dict.fromkeys((*config.train_on, *config.test_on))],
        "folds": config.folds,
    }


class _Run:
    """Runs the methods in one trial after the other."""

    def __init__(self, *, plan: Plan, reporter: Reporter, should_stop: Callable[[], bool]) -> None:
        self.reporter, self._should_stop = reporter, should_stop
        last = () if plan.final in plan.trials else (plan.final,)
        self._trials = (*plan.trials, *last)
        self._done, self._seconds, self._most = 0.0, 0.0, 1

    def run(self, trial: Trial, methods: Sequence[AnyMethod]) -> TrialResult:
        self._most = max(self._most, len(methods))
        if len(self._trials) > 1 and methods:
            self._tell(trial, len(methods))
        started, fitted = time.monotonic(), 0
        result = TrialResult(trial=trial, measured={s.name: [] for s in trial.tests}, excluded=[])
        for number, method in enumerate(methods, start=1):
            if self._should_stop():
                raise TrainingStoppedError(
                    f"stopped before {method.title}; everything so far is saved."
                )
            self.reporter(MethodStarted(title=method.title, number=number, count=len(methods)))
            try:
                fitted += _run_method(trial, method, result, self.reporter, self._should_stop)
            except Exception as error:
                gone = explain_failure(method.name, method.title, error, folder=trial.saved.folder)
                result.excluded.append(gone)
                self.reporter(MethodExcluded(title=gone.title, reason=gone.reason))
        if fitted:  # what an earlier run has finished says nothing about the time left
            self._done += trial.size * fitted / self._most
            self._seconds += time.monotonic() - started
        return result

    def _tell(self, trial: Trial, methods: int) -> None:
        """The time left grows with the answers that are trained on; the last trial may fit only the
        methods that are kept."""
        number = self._trials.index(trial)
        left = trial.size * methods / self._most
        left += sum(one.size for one in self._trials[number + 1 :])
        seconds = self._seconds / self._done * left if self._done else None
        place: dict[str, int] = {"number": number + 1, "count": len(self._trials)}
        self.reporter(StoreStarted(name=trial.name, **place, seconds_left=seconds))


def _run_method(
    trial: Trial,
    method: AnyMethod,
    result: TrialResult,
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> bool:
    """Run a method and add its rows to the result. Any error it raises excludes the method. Returns
    False if an earlier run had finished it."""
    reason = trial.refuse_reason(method)
    if reason is not None:
        raise InputError(reason)
    tests = trial.tested_by(method)
    if not tests:
        raise InputError(OTHER_BASIS)
    if len(tests) < len(trial.tests):
        result.excluded.append(_left_untested(trial, method, tests))
    started = time.monotonic()
    seeds, is_new = find_or_fit(method, trial, tests, reporter, should_stop)
    rows = [
        measure_method(
            method,
            seeds,
            trial.labels(store),
            store=store.name,
            bytes_=count_bytes(method, trial.train.data),
        )
        for store in tests
    ]
    for store, measured in zip(tests, rows, strict=True):
        result.measured[store.name].append(measured)
    seconds = time.monotonic() - started
    reporter(MethodEnded(row=rows[0].row, seconds=seconds, is_new=is_new))
    return is_new


def _left_untested(trial: Trial, method: AnyMethod, tests: Sequence[Store]) -> Excluded:
    others = " and ".join(store.name for store in trial.tests if store not in tests)
    reason = f"trained on {trial.name}, it is not tested on {others}: {OTHER_BASIS}"
    return Excluded(method=method.name, title=method.title, reason=reason)
