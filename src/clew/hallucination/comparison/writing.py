"""Write the files of a comparison: results.json, two tables, scores.arrow and transfer.csv."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.engine.identity import read_versions
from clew.hallucination.comparison.config import CompareConfig
from clew.hallucination.comparison.findings import find_sentences
from clew.hallucination.comparison.methods import AnyMethod, names_of_graph_methods
from clew.hallucination.comparison.rows import Labels, Measured, add_differences, pick_best
from clew.hallucination.comparison.stores import Store
from clew.hallucination.comparison.tables import (
    collect_cells,
    describe_transfer,
    make_csv,
    make_latex,
    make_transfer_csv,
    sort_rows,
)
from clew.hallucination.comparison.token_rows import measure_tokens
from clew.hallucination.comparison.trial import Trial, TrialResult
from clew.hallucination.detectors.training.task import LIBRARY, RESULTS_FILE
from clew.metrics import RESAMPLES
from clew.storage.writing import replace_file
from clew.typed_json import to_json

SCORES_FILE, CSV_FILE, LATEX_FILE, TRANSFER_FILE = (
    "scores.arrow",
    "table.csv",
    "table.tex",
    "transfer.csv",
)
_TEXTS = ("category", "question", "answer")
_SHOWN_ANSWERS = 3


def write_comparison(
    config: CompareConfig,
    methods: Sequence[AnyMethod],
    results: Sequence[TrialResult],
    kept: Mapping[str, str],
) -> dict[str, Any]:
    """The table is for the first store trained on and the first tested on; the matrix has all
    pairs. Returns the contents of results.json, which is written last; `kept` are the
    folders of the detectors, by method."""
    trial, test, measured = main_pair(results)
    labels = trial.labels(test)
    add_differences(measured, labels.test)
    rows = sort_rows([one.row for one in measured])
    best = pick_best(measured).row["method"]
    graphs = names_of_graph_methods(methods)
    content = {
        "methods": rows,
        "excluded": _list_excluded(results),
        "best": {"method": best, "chosen_on": "validation"},
        "findings": find_sentences(measured, labels, graph_methods=graphs),
        "data": _describe_data(trial, test),
        "capture": trial.train.data.settings.get("capture", {}),
        "settings": _describe_settings(config, methods, trial),
        "plans": {one.row["method"]: one.plan for one in measured if one.plan is not None},
        "versions": describe_versions(),
        "detectors": dict(kept),
        "transfer": _write_transfer(config, results) if config.is_transfer else None,
        "tokens": measure_tokens(trial, test, [one.row["method"] for one in measured]),
    }
    folder = config.out
    write_scores(folder, trial.train, test, labels, measured)
    write_text(folder / CSV_FILE, make_csv(rows))
    latex = make_latex(rows, best=best, test_answers=len(labels.test))
    write_text(folder / LATEX_FILE, latex)
    write_results(folder, content)
    return content


def _list_excluded(results: Sequence[TrialResult]) -> list[dict[str, Any]]:
    """Methods that several stores exclude for the same reason are listed once."""
    every = dict.fromkeys(one for result in results for one in result.excluded)
    return [one.to_dict() for one in every]


def main_pair(results: Sequence[TrialResult]) -> tuple[Trial, Store, list[Measured]]:
    """The first store that any method was tested on."""
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
    write_text(config.out / TRANSFER_FILE, make_transfer_csv(trials, cells))
    return describe_transfer(trials, cells)


def _describe_data(trial: Trial, test: Store) -> dict[str, Any]:
    """The data for fitting, choosing and testing."""
    labels = trial.labels(test).test
    hallucinated = int(labels.sum())
    told = trial.train.describe()
    questions = trial.train.data.identity.get("questions") or {}
    return {
        **told,
        "test": {"correct": len(labels) - hallucinated, "hallucinated": hallucinated},
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
        **config.training.describe(),
        "preprocess": trial.train.data.settings.get("preprocess", {}),
        "folders": [str(folder) for folder in dict.fromkeys((*config.train_on, *config.test_on))],
    }


def write_text(path: Path, text: str) -> None:
    replace_file(path, text.encode())


def write_results(folder: Path, content: Mapping[str, Any]) -> None:
    """Write results.json; non-finite values become null, since JSON has no NaN."""
    write_text(folder / RESULTS_FILE, f"{to_json(content, indent=1)}\n")


def write_scores(
    folder: Path, train: Store, test: Store, labels: Labels, measured: Sequence[Measured]
) -> None:
    """One row per answer: the validation split of `train`, then the kept answers of the test split
    of `test`; one column per method (risk_NAME) with the probability that the answer is
    hallucinated."""
    rows = np.arange(len(labels.validation))
    parts = [
        _part(
            train,
            "validation",
            rows,
            {m.row["method"]: m.validation_probabilities for m in measured},
        ),
        _part(test, "test", labels.kept, {m.row["method"]: m.test_probabilities for m in measured}),
    ]
    table = pa.concat_tables(parts)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    replace_file(folder / SCORES_FILE, sink.getvalue().to_pybytes())


def describe_versions() -> dict[str, str]:
    return read_versions(LIBRARY, "scikit-learn", "scipy")


def _part(
    store: Store, split: str, rows: np.ndarray, probabilities: Mapping[str, np.ndarray]
) -> pa.Table:
    data = store.data
    texts = {name: _pick(_read_texts(store, name, split), rows) for name in _TEXTS}
    accepted = _read_texts(store, "accepted_answers", split)
    joined = [None if some is None else _join(some) for some in accepted]
    columns = {
        "split": pa.array([split] * len(rows)),
        "global_example_id": pa.array(data.ids[split][rows].astype(np.int64)),
        "question_id": pa.array([str(one) for one in data.question_ids[split][rows]], pa.string()),
        **{name: pa.array(values, pa.string()) for name, values in texts.items()},
        "accepted_answers": pa.array(_pick(joined, rows), pa.string()),
        "label": pa.array(data.labels[split][rows].astype(np.int8)),
    }
    # Float64: with float32, all risks beyond a logit of 17 would be equal.
    risks = {f"risk_{name}": pa.array(values) for name, values in probabilities.items()}
    return pa.table({**columns, **risks})


def _read_texts(store: Store, name: str, split: str) -> list[Any]:
    if name not in store.data.fields:
        return [None] * len(store.data.labels[split])
    return list(store.data.read(name, split))


def _join(answers: Sequence[str | None]) -> str:
    return " / ".join([text for text in answers if text][:_SHOWN_ANSWERS])


def _pick(values: Sequence[Any], rows: np.ndarray) -> list[Any]:
    return [values[row] for row in rows]
