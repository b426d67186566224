"""What a comparison says with few answers, and about families of methods."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from clew.cli.compare import print_comparison
from clew.hallucination.comparison import ComparisonResult, compare_methods
from clew.hallucination.comparison.evaluation import over_seeds
from clew.hallucination.comparison.findings import tell_contest, tell_graphs
from clew.hallucination.comparison.report.comparison import read_comparison
from clew.hallucination.comparison.report.page import make_page
from clew.hallucination.comparison.trial import Labels, Measured
from clew.metrics.calibration import PlattScale
from clew.metrics.ranking import auroc
from tests.hallucination.comparison.making import Told, compare_config, write_data

GRAPHS = ("Networks on graphs", "method without graphs")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ComparisonResult:
    """60 answers: 3 hallucinated ones to choose on, and 3 to test."""
    folder = tmp_path_factory.mktemp("small")
    data = write_data(folder / "data", shards=1, rows=60)
    with pytest.MonkeyPatch.context() as patch:
        methods = (
            Told(name="perplexity", noise=2, family="no training"),
            Told(name="length", noise=5, family="baseline"),
            Told(name="sharp", noise=0.1),
        )
        patch.setattr("clew.hallucination.comparison.methods.NETWORK_METHODS", [])
        patch.setattr(
            "clew.hallucination.comparison.methods.PROBES", {one.name: one for one in methods}
        )
        return compare_methods(compare_config(data, folder / "out"))


def test_few_answers_have_no_p_value_and_no_best_method(small: ComparisonResult) -> None:
    results = small.results
    assert results["best"]["is_supported"] is False
    versus = [row["versus_perplexity"] for row in results["methods"] if row["versus_perplexity"]]
    assert versus and all(one["p_value"] is None for one in versus)
    findings = results["findings"]
    assert findings["best"].startswith("There are too few answers to choose a best method. Sharp,")
    assert "significant" not in " ".join(findings.values())
    assert findings["advice"].startswith("With fewer than 10 answers of a class there are no p-")
    assert findings["advice"].endswith("or test every answer once with `folds=5`.")


def test_few_answers_have_no_mark_in_any_table(small: ComparisonResult) -> None:
    assert "textbf" not in (small.folder / "table.tex").read_text()
    assert "(bold)" not in (small.folder / "table.tex").read_text()
    assert "^{*}$" not in (small.folder / "table.tex").read_text().split("midrule")[1]
    page = io.StringIO()
    print_comparison(Console(file=page, width=120), small.folder, small.results)
    assert all(mark not in page.getvalue() for mark in ("> ", "best on", "p < 0.05"))
    report = make_page(read_comparison(small.folder))
    assert "There are too few answers to choose a best method." in report
    assert "best on validation" not in report and "winner" not in report.partition("</style>")[2]


def test_interval_without_width_is_a_dash_in_the_table(small: ComparisonResult) -> None:
    """Where a method ranks all of few answers correctly, every bootstrap sample does."""
    rows = {row["method"]: row for row in small.results["methods"]}
    assert rows["sharp"]["test_auroc_ci"] == [1, 1]
    latex = (small.folder / "table.tex").read_text()
    assert "\nSharp & 1.000 [--] & " in latex and latex.count("[--]") == 1


def measured(
    name: str, scores: list[np.ndarray], labels: np.ndarray, *, epoch: Any = 7, family: str
) -> Measured:
    row = {
        "method": name,
        "title": name,
        "family": family,
        "val_auroc": auroc(labels, scores[0]),
        "test_auroc": auroc(labels, scores[0]),
        "chosen": {"epoch": epoch},
        **over_seeds(len(scores) > 1, [auroc(labels, one) for one in scores]),
    }
    return Measured(
        row=row,
        place=0,
        calibration=PlattScale.fit(labels, scores[0]),
        test_scores=scores[0],
        seed_scores=tuple(scores),
        validation_probabilities=np.zeros(0),
        test_probabilities=np.zeros(0),
        plan=None,
    )


@pytest.mark.parametrize(
    ("seeds", "epoch", "said"),
    [
        (5, 7, "Networks on graphs help: the best of them on validation, gnn, reaches 0."),
        (1, 7, "no conclusion, because gnn was trained with fewer than 3 seeds"),
        (5, 1, "no conclusion, because gnn was best after its first epoch"),
        (5, [1, 1, 9], "no conclusion, because gnn was best after its first epoch"),
    ],
)
def test_sentence_on_a_family_rests_on_seeds_and_on_learning(
    seeds: int, epoch: Any, said: str
) -> None:
    random = np.random.default_rng(0)
    test = np.arange(300) % 2
    labels = Labels(validation=test, test=test, kept=np.arange(300))
    graph = [2 * test + random.standard_normal(300) for _ in range(seeds)]
    probe = [0.5 * test + random.standard_normal(300)]
    ours = measured("gnn", graph, test, epoch=epoch, family="network")
    other = measured("probe", probe, test, family="probe")
    told = tell_contest(*GRAPHS, [ours], [other], labels)
    assert told is not None and said in told
    few = Labels(validation=test[:12], test=test, kept=labels.kept)
    assert tell_contest(*GRAPHS, [ours], [other], few) is None


def test_difference_that_depends_on_the_seed_is_no_difference() -> None:
    random = np.random.default_rng(1)
    test = np.arange(400) % 2
    labels = Labels(validation=test, test=test, kept=np.arange(400))
    shifts = (2.5, 0.3, 1.5)  # the first seed alone would win
    ours = [shift * test + random.standard_normal(400) for shift in shifts]
    others = [1.0 * test + random.standard_normal(400) for _ in shifts]
    told = tell_contest(
        *GRAPHS,
        [measured("gnn", ours, test, family="network")],
        [measured("lstm", others, test, family="network")],
        labels,
    )
    assert told is not None and "make no statistically significant difference" in told


def test_folds_are_named_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.hallucination.comparison.methods.NETWORK_METHODS", [])
    data = write_data(tmp_path / "data", shards=1, rows=60)
    compare_methods(compare_config(data, tmp_path / "out", methods=("perplexity",), folds=4))
    page = make_page(read_comparison(tmp_path / "out"))
    assert "in 4 folds" in page.partition("</title>")[0]


def test_graphs_are_compared_with_networks_without_them() -> None:
    """A probe that beats every network says nothing about graphs."""
    random = np.random.default_rng(0)
    test = np.arange(300) % 2
    labels = Labels(validation=test, test=test, kept=np.arange(300))
    graph, plain = ([test + random.standard_normal(300) for _ in range(5)] for _ in range(2))
    gnn = measured("gnn", graph, test, family="network")
    lstm = measured("lstm", plain, test, family="network")
    probe = measured("probe", [4 * test + random.standard_normal(300)], test, family="probe")
    told = tell_graphs([gnn, lstm, probe], ["gnn"], labels)
    assert told is not None and "make no statistically significant difference" in told
    assert "the best network without graphs on validation, lstm, reaches" in told
    alone = tell_graphs([gnn, probe], ["gnn"], labels)
    assert alone is not None and alone.startswith("Networks on attention graphs hurt:")
    assert "the best method without graphs on validation, probe, reaches" in alone
    assert tell_graphs([lstm, probe], ["gnn"], labels) is None
