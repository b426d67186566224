"""Write the files of a comparison: results.json, its tables and scores.arrow."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.base.progress import Reporter, StepStarted, ignore_event, report_work
from clew.base.texts import for_terminal
from clew.engine.checkpoint import read_versions
from clew.hallucination.comparison.evaluation import (
    Evaluation,
    is_significant,
    pick_best,
)
from clew.hallucination.comparison.findings import (
    chosen_on,
    find_sentences,
    list_names,
    tell_transfer,
)
from clew.hallucination.comparison.methods import AnyMethod, names_of_graph_methods
from clew.hallucination.comparison.stores import Store
from clew.hallucination.comparison.tokens import measure_tokens
from clew.hallucination.comparison.trial import Row, Trial
from clew.hallucination.detectors.folder import KEPT
from clew.hallucination.detectors.training.train import LIBRARY, RESULTS_FILE
from clew.hallucination.samples.splits import Balance
from clew.storage.arrow import encode_table
from clew.storage.text_files import csv_text
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
    told: str | None,
    settings: Mapping[str, Any],
    reporter: Reporter = ignore_event,
) -> dict[str, Any]:
    """Write the files of a comparison. Returns the contents of results.json, which is written last;
    `kept` are the folders of the detectors, by method, and `told` is a sentence about them."""
    measured, labels, trial = evaluation.measured, evaluation.labels, evaluation.trial
    plan = evaluation.plan
    rows = sort_rows([one.row for one in measured])
    best = pick_best(measured).row["method"]
    graphs = names_of_graph_methods(methods)
    sets = describe_left_out(evaluation) if plan.kind == "sets" else None
    content = {
        "methods": rows,
        # Methods that several stores exclude for the same reason are listed once.
        "excluded": [
            {"method": one.method, "title": one.title, "reason": one.reason}
            for one in dict.fromkeys(evaluation.excluded)
        ],
        # Whether there are enough answers to call it the best.
        "best": {
            "method": best,
            "chosen_on": chosen_on(plan.kind),
            "is_supported": labels.supports_choice,
        },
        "findings": {
            **find_sentences(
                measured, labels, graph_methods=graphs, kind=plan.kind, parts=len(evaluation.parts)
            ),
            **(tell_transfer(evaluation) if sets else {}),
            **({"detector": told} if told else {}),
        },
        "data": _describe_data(evaluation),
        "capture": trial.train.data.settings.get("capture", {}),
        "settings": settings,
        "plans": {one.row["method"]: one.plan for one in measured if one.plan is not None},
        "versions": read_versions(LIBRARY, "scikit-learn", "scipy"),
        "detectors": dict(kept),
        # Those whose training the report shows.
        "networks": evaluation.parts[0].trial.networks_folder.relative_to(out).as_posix(),
        "leave_one_out": sets,
        "folds": _describe_folds(evaluation),
        "transfer": _write_transfer(out, evaluation) if plan.pairs else None,
        "tokens": measure_tokens(evaluation, reporter),
    }
    with report_work(reporter, StepStarted(name="writing the tables")):
        _write_tables(out, evaluation, content)
    # Non-finite values become null, since JSON has no NaN.
    replace_json(out / RESULTS_FILE, content)
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


def _describe_folds(evaluation: Evaluation) -> dict[str, Any] | None:
    if evaluation.plan.kind != "folds":
        return None
    counts = [asdict(Balance.of(part.labels.test)) for part in evaluation.parts]
    return {"count": len(counts), "test": counts}


def _write_transfer(out: Path, evaluation: Evaluation) -> dict[str, Any]:
    trials = evaluation.plan.pairs
    cells: dict[str, dict[tuple[str, str], Row]] = {}
    for result in evaluation.results:
        for name, measured in result.measured.items() if result.trial in trials else ():
            for one in measured:
                of = cells.setdefault(one.row["method"], {})
                of[result.trial.name, name] = one.row
    write_text(out / TRANSFER_FILE, make_transfer_csv(trials, cells))
    return describe_transfer(trials, cells)


def _describe_data(evaluation: Evaluation) -> dict[str, Any]:
    """The data for fitting, choosing and testing. `name` is the question set, or the sets."""
    trial, tested = evaluation.trial, [one.store.name for one in evaluation.parts]
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
    stores = (evaluation.trial.train, *(one.store for one in evaluation.parts))
    folders = {one.folder: one.refused for store in stores for one in store.folders}
    count = sum(folders.values())
    return {"refused": count} if count else {}


def write_text(path: Path, text: str) -> None:
    replace_file(path, text.encode())


def write_scores(folder: Path, evaluation: Evaluation) -> None:
    """One row per answer: the validation split, if there is only one, then the test answers that
    are evaluated; one column per method (risk_NAME) with the probability that the answer is
    hallucinated. Several question sets are told apart by the column `set`."""
    parts, start = [], 0
    if not evaluation.plan.is_pooled:
        risks = {m.row["method"]: m.validation_probabilities for m in evaluation.measured}
        rows = np.arange(len(evaluation.labels.validation))
        parts.append(_part(evaluation.trial.train, "validation", rows, risks))
    for one in evaluation.parts:
        end = start + len(one.labels.kept)
        some = {m.row["method"]: m.test_probabilities[start:end] for m in evaluation.measured}
        part, start = _part(one.store, "test", one.labels.kept, some), end
        if evaluation.plan.kind == "sets":
            part = part.append_column("set", pa.array([one.store.name] * len(part)))
        parts.append(part)
    replace_file(folder / SCORES_FILE, encode_table(pa.concat_tables(parts)))


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


_PLAIN = (
    *("method", "title", "family", "val_auroc", "test_auroc"),
    *("test_auprc", "test_f1", "test_accuracy", "test_ece", "test_aurc"),
    *("threshold", "seeds", "test_auroc_mean", "test_auroc_std"),
    *("parameters", "train_seconds", "ms_per_answer", "bytes_per_answer"),
)
_DIFFERENCE = ("difference", "low", "high", "p_value")
_PAIRS = ("versus_best", "versus_perplexity")
_COLUMNS = (
    *(*_PLAIN, "test_auroc_low", "test_auroc_high"),
    *(f"{pair}_{name}" for pair in _PAIRS for name in _DIFFERENCE),
)
_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
_NOTE = (
    "Methods sorted by their AUROC on {chosen_on}, by which the best {bold} chosen; all other "
    "metrics are on the test answers ({count:,}). AUROC with 95\\,\\% bootstrap confidence "
    "interval; F1 and accuracy at the validation threshold; $\\Delta$: AUROC difference from "
    "perplexity ($^{{*}}$: $p < 0.05$, paired bootstrap). Seeds: mean and standard deviation."
)
_AUROC: dict[str, Callable[[Row], float]] = {
    "auroc": lambda row: row["test_auroc"],
    "low": lambda row: row["test_auroc_ci"][0],
    "high": lambda row: row["test_auroc_ci"][1],
}
_MEANS = ("mean", "mean_low", "mean_high")
# By method, then by the names of the stores: trained on, tested on.
Cells = Mapping[str, Mapping[tuple[str, str], Row]]


def sort_rows(rows: Sequence[Row]) -> list[Row]:
    """Highest validation AUROC first."""
    return sorted(rows, key=lambda row: -row["val_auroc"])


def make_csv(rows: Sequence[Row]) -> str:
    return csv_text([_COLUMNS, *([*_flatten(row).values()] for row in sort_rows(rows))])


def make_table(rows: Sequence[Row]) -> pa.Table:
    """What table.csv holds, as an Arrow table."""
    flat = [_flatten(row) for row in sort_rows(rows)]
    columns = {name: pa.array([row[name] for row in flat]) for name in _COLUMNS}
    return pa.table({name: _as_numbers(column) for name, column in columns.items()})


def _as_numbers(column: pa.Array) -> pa.Array:
    """A column without a value, such as the deviation over one seed, is still one of numbers."""
    return column.cast(pa.float64()) if pa.types.is_null(column.type) else column


def _flatten(row: Row) -> dict[str, Any]:
    low, high = row["test_auroc_ci"]
    told = [(row[pair] or {}).get(name) for pair in _PAIRS for name in _DIFFERENCE]
    values = [*(row[name] for name in _PLAIN), low, high, *told]
    return dict(zip(_COLUMNS, values, strict=True))


def make_latex(
    rows: Sequence[Row], *, best: str, test_answers: int, chosen_on: str = "validation"
) -> str:
    """A table environment; requires the booktabs package."""
    bold = "(bold) is" if best else "(none is supported by the test answers) is"
    return latex_table(
        _NOTE.format(count=test_answers, chosen_on=chosen_on, bold=bold),
        ("Method", "AUROC", "Seeds", "AUPRC", "F1", "Acc.", "ECE", "AURC", r"$\Delta$"),
        [_latex_row(row, is_best=row["method"] == best) for row in sort_rows(rows)],
    )


def latex_table(note: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}[t]",
        r"\centering",
        r"\small",
        rf"\caption{{{note}}}",
        rf"\begin{{tabular}}{{l{'c' * (len(heads) - 1)}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
        *(" & ".join(cells) + r" \\" for cells in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    return re.sub(r"[&%$#_{}\\~^<>]", lambda found: _LATEX[found[0]], for_terminal(text))


def _latex_row(row: Row, *, is_best: bool) -> list[str]:
    title, (low, high) = escape_latex(row["title"]), row["test_auroc_ci"]
    figure = f"{row['test_auroc']:.3f}"
    if is_best:
        title, figure = rf"\textbf{{{title}}}", rf"\textbf{{{figure}}}"
    names = ("test_auprc", "test_f1", "test_accuracy", "test_ece", "test_aurc")
    return [
        title,
        f"{figure} [{low:.3f}, {high:.3f}]" if low < high else f"{figure} [--]",
        _latex_seeds(row),
        *(f"{row[name]:.3f}" for name in names),
        _latex_difference(row["versus_perplexity"]),
    ]


def _latex_seeds(row: Row) -> str:
    if row["test_auroc_mean"] is None or row["test_auroc_std"] is None:
        return "--"
    return rf"${row['test_auroc_mean']:.3f} \pm {row['test_auroc_std']:.3f}$"


def _latex_difference(versus: dict[str, Any] | None) -> str:
    if versus is None:
        return "--"
    mark = "^{*}" if is_significant(versus) else ""
    return f"${versus['difference']:+.3f}{mark}$"


def describe_transfer(trials: Sequence[Trial], cells: Cells) -> dict[str, Any]:
    """The "transfer" of results.json: `auroc[method][trained on][tested on]`, null if a method did
    not run, `low` and `high` likewise; `answers[trained on][tested on]` is the number of test
    answers, `correct` that of the correct ones, and `excluded` that of shared questions."""
    train = [trial.name for trial in trials]
    test = [store.name for store in trials[0].tests]
    return {
        "stores": list(dict.fromkeys([*train, *test])),
        "train_on": train,
        "test_on": test,
        "methods": list(cells),
        "titles": [next(iter(of.values()))["title"] for of in cells.values()],
        **{
            name: [
                [[figure(of[a, b]) if (a, b) in of else None for b in test] for a in train]
                for of in cells.values()
            ]
            for name, figure in _AUROC.items()
        },
        "answers": [[len(t.labels(store).test) for store in t.tests] for t in trials],
        "correct": [[int((t.labels(s).test == 0).sum()) for s in t.tests] for t in trials],
        "excluded": [[int(t.shared[name].sum()) for name in test] for t in trials],
    }


def make_transfer_csv(trials: Sequence[Trial], cells: Cells) -> str:
    """One line per method and pair of stores."""
    names = ("val_auroc", "test_auroc")
    lines: list[Sequence[Any]] = [
        ("method", "train_on", "test_on", *names, "low", "high", "answers", "correct", "excluded")
    ]
    labels = {(t.name, store.name): t.labels(store).test for t in trials for store in t.tests}
    left = {(t.name, name): int(of.sum()) for t in trials for name, of in t.shared.items()}
    for method, of in cells.items():
        for (train, test), row in of.items():
            found = labels[train, test]
            counts = (len(found), int((found == 0).sum()), left[train, test])
            figures = (row[name] for name in names)
            lines.append([method, train, test, *figures, *row["test_auroc_ci"], *counts])
    return csv_text(lines)


_SETS_NOTE = (
    "Leave-one-set-out: test AUROC on all answers of each question set by detectors that were "
    "trained on the others, with 95\\,\\% bootstrap confidence intervals; below each set its "
    "number of answers and how many are correct. The mean counts every set the same; its interval "
    "resamples answers within the sets."
)


def describe_left_out(evaluation: Evaluation) -> dict[str, Any]:
    """The "leave_one_out" of results.json: for every set its answers; for every method `auroc`,
    `low` and `high` by set, and the same for the mean over the sets."""
    parts, excluded = evaluation.parts, evaluation.plan.excluded or {}
    means = sort_rows([one.row for one in evaluation.measured])
    found = [[part.measured[mean["method"]].row for part in parts] for mean in means]
    return {
        "sets": [part.store.name for part in parts],
        "answers": [len(part.labels.test) for part in parts],
        "correct": [int((part.labels.test == 0).sum()) for part in parts],
        "excluded": [excluded.get(part.store.name, 0) for part in parts],
        "trained_on": [part.trial.size for part in parts],
        "methods": [mean["method"] for mean in means],
        "titles": [mean["title"] for mean in means],
        **{name: [[of(row) for row in rows] for rows in found] for name, of in _AUROC.items()},
        **{
            name: [of(mean) for mean in means]
            for name, of in zip(_MEANS, _AUROC.values(), strict=True)
        },
    }


def make_sets_csv(sets: Mapping[str, Any]) -> str:
    """One line per method and set, and one for its mean."""
    lines: list[Sequence[Any]] = [
        ("method", "test_on", "test_auroc", "low", "high", "answers", "correct", "excluded")
    ]
    for place, method in enumerate(sets["methods"]):
        figures = zip(*(sets[name][place] for name in _AUROC), strict=True)
        counts = zip(*(sets[name] for name in ("answers", "correct", "excluded")), strict=True)
        for name, values, of in zip(sets["sets"], figures, counts, strict=True):
            lines.append([method, name, *values, *of])
        mean = [sets[name][place] for name in _MEANS]
        total = [sum(sets[name]) for name in ("answers", "correct", "excluded")]
        lines.append([method, "(mean)", *mean, *total])
    return csv_text(lines)


def make_sets_latex(sets: Mapping[str, Any]) -> str:
    """A table environment with one column per set; requires the booktabs package."""
    sizes = zip(sets["sets"], sets["answers"], sets["correct"], strict=True)
    heads = [f"{escape_latex(name)} ({of:,}; {correct:,})" for name, of, correct in sizes]
    rows = []
    for place, title in enumerate(sets["titles"]):
        triples = zip(*(sets[name][place] for name in _AUROC), strict=True)
        mean = [sets[name][place] for name in _MEANS]
        cells = [
            f"{value:.3f} [{low:.3f}, {high:.3f}]" if low < high else f"{value:.3f} [--]"
            for value, low, high in (mean, *triples)
        ]
        rows.append([escape_latex(title), *cells])
    return latex_table(_SETS_NOTE, ("Method", "Mean", *heads), rows)
