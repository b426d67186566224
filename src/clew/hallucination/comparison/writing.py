"""Write the files of a comparison: results.json, its tables and scores.arrow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.engine.checkpoint import read_versions
from clew.hallucination.comparison.evaluation import Evaluation
from clew.hallucination.comparison.findings import Where, find_sentences
from clew.hallucination.comparison.measuring import pick_best
from clew.hallucination.comparison.methods import AnyMethod, names_of_graph_methods
from clew.hallucination.comparison.stores import Store
from clew.hallucination.comparison.tables import (
    collect_cells,
    describe_left_out,
    describe_transfer,
    list_names,
    make_csv,
    make_latex,
    make_sets_csv,
    make_sets_latex,
    make_transfer_csv,
    sort_rows,
    tell_transfer,
)
from clew.hallucination.comparison.trial import Trial
from clew.hallucination.detectors.detector_folder import KEPT
from clew.hallucination.detectors.probes.tokens import (
    NEEDS,
    SPANS,
    PooledTokens,
    fit_token_probe,
    has_spans,
    learn_token_probe,
    read_inputs,
)
from clew.hallucination.detectors.tokens import TokenProbe
from clew.hallucination.detectors.training.train import LIBRARY, RESULTS_FILE
from clew.hallucination.samples.mixed import AnswerData
from clew.hallucination.samples.splits import Balance
from clew.metrics import measure_groups
from clew.storage.arrow import encode_table
from clew.storage.writing import replace_file, replace_json

SCORES_FILE, TRANSFER_FILE = "scores.arrow", "transfer.csv"
CSV_FILE, LATEX_FILE = "table.csv", "table.tex"
SETS_CSV, SETS_LATEX = "leave_one_out.csv", "leave_one_out.tex"
_TABLES = (SCORES_FILE, CSV_FILE, LATEX_FILE, TRANSFER_FILE, SETS_CSV, SETS_LATEX)
# What a comparison writes into its folder, besides those of its trials.
COMPARISON_FILES = (
    *(RESULTS_FILE, *_TABLES, "report.html", "figures"),
    *("methods", "networks", KEPT, f"{KEPT}s"),
)
_TEXTS = ("category", "question", "answer")
_SHOWN_ANSWERS = 3


def write_comparison(
    out: Path,
    methods: Sequence[AnyMethod],
    evaluation: Evaluation,
    kept: Mapping[str, str],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the files of a comparison. Returns the contents of results.json, which is written last;
    `kept` are the folders of the detectors, by method."""
    measured, labels, trial = evaluation.measured, evaluation.labels, evaluation.trial
    rows = sort_rows([one.row for one in measured])
    best = pick_best(measured).row["method"]
    graphs = names_of_graph_methods(methods)
    sets = describe_left_out(evaluation) if evaluation.plan.kind == "sets" else None
    content = {
        "methods": rows,
        "excluded": _list_excluded(evaluation),
        "best": _describe_best(best, evaluation),
        "findings": {
            **find_sentences(
                measured,
                labels,
                graph_methods=graphs,
                where=_find_where(evaluation),
            ),
            **(tell_transfer(evaluation) if sets else {}),
        },
        "data": _describe_data(evaluation),
        "capture": trial.train.data.settings.get("capture", {}),
        "settings": settings,
        "plans": {one.row["method"]: one.plan for one in measured if one.plan is not None},
        "versions": describe_versions(),
        "detectors": dict(kept),
        "networks": _find_networks(out, evaluation),
        "leave_one_out": sets,
        "folds": _describe_folds(evaluation),
        "transfer": _write_transfer(out, evaluation) if evaluation.plan.pairs else None,
        "tokens": _measure_tokens(evaluation),
    }
    _write_tables(out, evaluation, content)
    write_results(out, content)
    return content


def _write_tables(folder: Path, evaluation: Evaluation, content: Mapping[str, Any]) -> None:
    rows, best = content["methods"], content["best"]
    write_scores(folder, evaluation)
    write_text(folder / CSV_FILE, make_csv(rows))
    marked = best["method"] if best["is_supported"] else ""
    latex = make_latex(
        rows, best=marked, test_answers=len(evaluation.labels.test), chosen_on=best["chosen_on"]
    )
    write_text(folder / LATEX_FILE, latex)
    if content["leave_one_out"] is not None:
        write_text(folder / SETS_CSV, make_sets_csv(content["leave_one_out"]))
        write_text(folder / SETS_LATEX, make_sets_latex(content["leave_one_out"]))


def _find_where(evaluation: Evaluation) -> Where:
    count = len(evaluation.parts)
    if evaluation.plan.kind == "sets":
        return Where(
            chosen_on="the validation splits of the left-out sets",
            measured=f"a mean AUROC of {{}} over {count} question sets that it was not trained on",
            can_fold=False,
        )
    if evaluation.plan.kind == "folds":
        measured = f"an AUROC of {{}} on all answers, in {count} folds"
        return Where(chosen_on="the validation folds", measured=measured, can_fold=False)
    return Where(can_fold=evaluation.plan.kind == "one split")


def _describe_best(best: str, evaluation: Evaluation) -> dict[str, Any]:
    """`is_supported`: whether there are enough answers to call it the best."""
    return {
        "method": best,
        "chosen_on": _find_where(evaluation).chosen_on,
        "is_supported": evaluation.labels.supports_choice,
    }


def _list_excluded(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Methods that several stores exclude for the same reason are listed once."""
    return [one.to_dict() for one in dict.fromkeys(evaluation.excluded)]


def _find_networks(out: Path, evaluation: Evaluation) -> str:
    """The folder of the networks whose training the report shows."""
    trial = evaluation.plan.parts[0] if evaluation.parts else evaluation.trial
    return trial.networks_folder.relative_to(out).as_posix()


def _describe_folds(evaluation: Evaluation) -> dict[str, Any] | None:
    if evaluation.plan.kind != "folds":
        return None
    counts = [asdict(Balance.of(part.labels.test)) for part in evaluation.parts]
    return {"count": len(counts), "test": counts}


def _measure_tokens(evaluation: Evaluation) -> dict[str, Any] | None:
    if evaluation.parts:
        return None
    names = [one.row["method"] for one in evaluation.measured]
    return measure_tokens(evaluation.trial, evaluation.tested[0].store, names)


def _write_transfer(out: Path, evaluation: Evaluation) -> dict[str, Any]:
    trials = evaluation.plan.pairs
    results = [result for result in evaluation.results if result.trial in trials]
    cells = collect_cells(
        {
            (result.trial.name, name): measured
            for result in results
            for name, measured in result.measured.items()
        }
    )
    write_text(out / TRANSFER_FILE, make_transfer_csv(trials, cells))
    return describe_transfer(trials, cells)


def _describe_data(evaluation: Evaluation) -> dict[str, Any]:
    """The data for fitting, choosing and testing. `name` is the question set, or the sets."""
    trial, tested = evaluation.trial, [one.store.name for one in evaluation.tested]
    questions = trial.train.data.identity.get("questions") or {}
    names = {"name": questions.get("name") or trial.name, "train_on": trial.name}
    if evaluation.plan.kind == "sets":
        names = {"name": list_names(tested), "train_on": "the other sets"}
    return {
        **trial.train.describe(),
        "test": asdict(Balance.of(evaluation.labels.test)),
        **names,
        "test_on": trial.name if evaluation.plan.kind == "folds" else list_names(tested),
        **_count_refused(evaluation),
    }


def _count_refused(evaluation: Evaluation) -> dict[str, int]:
    """The answers of all folders that the model refused, and that are in no split; nothing if there
    are none."""
    stores = (evaluation.trial.train, *(one.store for one in evaluation.tested))
    folders = {one.folder: one.refused for store in stores for one in store.folders}
    count = sum(folders.values())
    return {"refused": count} if count else {}


def write_text(path: Path, text: str) -> None:
    replace_file(path, text.encode())


def write_results(folder: Path, content: Mapping[str, Any]) -> None:
    """Write results.json; non-finite values become null, since JSON has no NaN."""
    replace_json(folder / RESULTS_FILE, content)


def write_scores(folder: Path, evaluation: Evaluation) -> None:
    """One row per answer: the validation split, if there is only one, then the test answers that
    are evaluated; one column per method (risk_NAME) with the probability that the answer is
    hallucinated. Several question sets are told apart by the column `set`."""
    parts, start = [], 0
    if not evaluation.parts:
        risks = {m.row["method"]: m.validation_probabilities for m in evaluation.measured}
        rows = np.arange(len(evaluation.labels.validation))
        parts.append(_part(evaluation.trial.train, "validation", rows, risks))
    for one in evaluation.tested:
        end = start + len(one.kept)
        some = {m.row["method"]: m.test_probabilities[start:end] for m in evaluation.measured}
        part, start = _part(one.store, "test", one.kept, some), end
        if evaluation.plan.kind == "sets":
            part = part.append_column("set", pa.array([one.store.name] * len(part)))
        parts.append(part)
    replace_file(folder / SCORES_FILE, encode_table(pa.concat_tables(parts)))


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


_METHOD = "token_probe"
_FALSE_POSITIVE_RATE = 0.05
_TITLES = {
    "spans": "Token probe, from span labels",
    "answers": "Token probe, from answer labels",
}


def measure_tokens(trial: Trial, test: Store, methods: Sequence[str]) -> dict[str, Any] | None:
    """The "tokens" of results.json; None if the test answers have no span labels of both classes,
    or their probabilities were not captured. The token probe is measured if it is one of the
    `methods`."""
    data, kept = test.data, trial.labels(test).kept
    if not data.fields.issuperset((SPANS, *NEEDS[1:])):
        return None
    labels = _Labels(data, kept)
    if len(np.unique(labels.known)) < 2:
        return None
    probes = _fit_probes(trial.train.data) if _METHOD in methods and test is trial.train else ()
    rows = [
        labels.measure(_METHOD, _TITLES[probe.trained_on], _logits(probe, data, kept))
        for probe in probes
    ]
    for name, title, sign in (
        ("token_logprob", "Token log-probability", -1),
        ("token_entropy", "Token entropy", 1),
    ):
        values = data.read(NEEDS[1] if sign < 0 else NEEDS[2], "test")
        scores = [sign * values[row] for row in kept.tolist()]
        rows.append(labels.measure(name, title, scores))
    return {
        "answers": int(len(np.unique(labels.answers))),
        "tokens": int(len(labels.known)),
        "hallucinated": int(labels.known.sum()),
        "false_positive_rate": _FALSE_POSITIVE_RATE,
        "rows": rows,
    }


class _Labels:
    """The tokens of the test split whose label is known, and the answers they are in."""

    def __init__(self, data: AnswerData, kept: np.ndarray) -> None:
        every = data.read(SPANS, "test")
        spans = [every[row] for row in kept.tolist()]
        flat = np.concatenate(spans)
        self._places = np.flatnonzero(flat >= 0)
        self.known = flat[self._places].astype(np.int8)
        self.answers = np.repeat(np.arange(len(spans)), [len(one) for one in spans])[self._places]

    def measure(self, method: str, title: str, scores: Sequence[np.ndarray]) -> dict[str, Any]:
        found = measure_groups(
            self.known,
            np.concatenate(scores)[self._places],
            self.answers,
            false_positive_rate=_FALSE_POSITIVE_RATE,
        )
        return {"method": method, "title": title, **asdict(found)}


def _fit_probes(data: AnswerData) -> Iterator[TokenProbe]:
    """From span labels if there are enough, and from answer labels: what the others would gain."""
    fitted = [learn_token_probe(data)]
    if has_spans(data):
        fitted.append(fit_token_probe(data, spans=False))
    for one in fitted:
        assert isinstance(one.scorer, PooledTokens)
        yield one.scorer.probe


def _logits(probe: TokenProbe, data: AnswerData, kept: np.ndarray) -> list[np.ndarray]:
    every = [probe.logits(inputs) for inputs in read_inputs(probe, data, "test")]
    return [every[row] for row in kept.tolist()]
