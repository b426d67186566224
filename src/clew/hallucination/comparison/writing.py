"""Puts what all methods reached into the files of the comparison."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from clew.hallucination.comparison.config import CompareConfig
from clew.hallucination.comparison.files import (
    CSV_FILE,
    LATEX_FILE,
    TRANSFER_FILE,
    describe_versions,
    write_results,
    write_scores,
    write_text,
)
from clew.hallucination.comparison.findings import find_sentences
from clew.hallucination.comparison.methods import AnyMethod, names_of_graph_methods
from clew.hallucination.comparison.result import TrialResult
from clew.hallucination.comparison.rows import Measured, add_differences, pick_best
from clew.hallucination.comparison.stores import Store
from clew.hallucination.comparison.tables import make_csv, make_latex, sort_rows
from clew.hallucination.comparison.transfer import (
    collect_cells,
    describe_transfer,
    make_transfer_csv,
)
from clew.hallucination.comparison.trial import Trial
from clew.metrics import RESAMPLES


def write_comparison(
    config: CompareConfig, methods: Sequence[AnyMethod], results: Sequence[TrialResult]
) -> dict[str, Any]:
    """The table is that of the first store trained on and the first tested on; the matrix has all
    pairs. Gives what results.json holds; that file comes last."""
    trial, test, measured = _main_pair(results)
    labels = trial.labels(test)
    add_differences(measured, labels.test)
    rows = sort_rows([one.row for one in measured])
    best = pick_best(measured).row["method"]
    graphs = names_of_graph_methods(methods)
    content = {
        "methods": rows,
        "left_out": _list_left_out(results),
        "best": {"method": best, "chosen_on": "validation"},
        "findings": find_sentences(measured, labels, graph_methods=graphs),
        "data": _describe_data(trial, test),
        "capture": trial.train.data.settings.get("capture", {}),
        "settings": _describe_settings(config, methods, trial),
        "plans": {one.row["method"]: one.plan for one in measured if one.plan is not None},
        "versions": describe_versions(),
        "transfer": _write_transfer(config, results) if config.is_transfer else None,
    }
    folder = config.output_dir
    write_scores(folder, trial.train, test, labels, measured)
    write_text(folder / CSV_FILE, make_csv(rows))
    latex = make_latex(rows, best=best, test_answers=len(labels.test))
    write_text(folder / LATEX_FILE, latex)
    write_results(folder, content)
    return content


def _list_left_out(results: Sequence[TrialResult]) -> list[dict[str, Any]]:
    """What several stores leave out for the same reason is named once."""
    every = dict.fromkeys(one for result in results for one in result.left_out)
    return [one.to_dict() for one in every]


def _main_pair(results: Sequence[TrialResult]) -> tuple[Trial, Store, list[Measured]]:
    """The first that any method was measured on."""
    return next(
        (result.trial, store, result.measured[store.name])
        for result in results
        for store in result.trial.tests
        if result.measured[store.name]
    )


def _write_transfer(config: CompareConfig, results: Sequence[TrialResult]) -> dict[str, Any]:
    trials = [result.trial for result in results]
    cells = collect_cells(
        {
            (result.trial.train.name, name): measured
            for result in results
            for name, measured in result.measured.items()
        }
    )
    write_text(config.output_dir / TRANSFER_FILE, make_transfer_csv(trials, cells))
    return describe_transfer(trials, cells)


def _describe_data(trial: Trial, test: Store) -> dict[str, Any]:
    """What was fitted, chosen and measured on."""
    labels = trial.labels(test).test
    made_up = int(labels.sum())
    told = trial.train.describe()
    questions = trial.train.data.identity.get("questions") or {}
    return {
        **told,
        "test": {"right": len(labels) - made_up, "made_up": made_up},
        "name": questions.get("name") or trial.train.name,
        "train_on": trial.train.name,
        "test_on": test.name,
    }


def _describe_settings(
    config: CompareConfig, methods: Sequence[AnyMethod], trial: Trial
) -> dict[str, Any]:
    return {
        "methods": [method.name for method in methods],
        "seeds": config.seeds,
        "resamples": RESAMPLES,
        "train": asdict(config.train),
        "request": asdict(config.request),
        "network": config.network.given(),
        "loss": asdict(config.loss),
        "preprocess": trial.train.data.settings.get("preprocess", {}),
        "folders": [str(folder) for folder in dict.fromkeys((*config.train_on, *config.test_on))],
    }
