"""Metrics per token, in results.json, on the terminal and in the report."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clew.cli.compare import print_comparison
from clew.hallucination.comparison import compare_methods
from clew.hallucination.comparison.report.comparison import read_comparison
from clew.hallucination.comparison.report.page import make_page
from tests.hallucination.comparison.making import compare_config
from tests.hallucination.detectors.training.making import write_learnable
from tests.pages.reading import Page

pytestmark = pytest.mark.slow

METHODS = ("perplexity", "token_probe")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    data = write_learnable(folder / "data", answers=True, heads=False, spans=True)
    return compare_methods(compare_config(data, folder / "out", methods=METHODS)).results


def test_token_probe_is_measured_per_token(results: dict[str, Any]) -> None:
    tokens = results["tokens"]
    assert [row["title"] for row in tokens["rows"]] == [
        "Token probe, from span labels",
        "Token probe, from answer labels",
        "Token log-probability",
        "Token entropy",
    ]
    assert 0 < tokens["hallucinated"] < tokens["tokens"]
    spans, answers, logprob, _ = tokens["rows"]
    assert spans["auroc"] > 0.95 and answers["auroc"] > 0.9 > logprob["auroc"] > 0.5
    for row in tokens["rows"]:
        for name in ("auroc", "recall"):
            low, high = row[f"{name}_ci"]
            assert 0 <= low <= row[name] <= high <= 1
    assert spans["span_f1"] > 0.8 > logprob["span_f1"]
    low, high = spans["span_f1_ci"]
    assert low <= spans["span_f1"] <= high and len(spans["span_thresholds"]) == 1
    assert 0 < tokens["hallucinated_characters"] < tokens["characters"]
    chosen = {row["method"]: row["chosen"] for row in results["methods"]}["token_probe"]
    assert chosen["trained_on"] == "spans"


def test_metrics_per_token_are_printed_and_in_the_report(
    results: dict[str, Any], folder: Path
) -> None:
    console = Console(file=io.StringIO(), width=100)
    print_comparison(console, folder / "out", results)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "recall, 5% FPR" in printed and "Token probe, from span labels" in printed
    assert "span F1" in printed and f"{results['tokens']['rows'][0]['span_f1']:.3f} [" in printed
    page = make_page(read_comparison(folder / "out"))
    section = Page(page).section("tokens")
    assert "Token probe, from answer labels" in section
    assert "F1 of spans, by characters" in section


def test_samples_without_places_say_why_there_is_no_span_f1(folder: Path) -> None:
    data = write_learnable(folder / "old", answers=True, heads=False, spans=True, places=False)
    results = compare_methods(compare_config(data, folder / "o", methods=METHODS)).results
    assert {row["span_f1"] for row in results["tokens"]["rows"]} == {None}
    console = Console(file=io.StringIO(), width=100)
    print_comparison(console, folder / "o", results)
    printed = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert 'Run "clew preprocess" again into a new folder' in printed


def test_answers_without_span_labels_have_no_metrics_per_token(folder: Path) -> None:
    data = write_learnable(folder / "plain", answers=True, heads=False)
    results = compare_methods(compare_config(data, folder / "other", methods=METHODS)).results
    assert results["tokens"] is None
    assert {row["method"] for row in results["methods"]} == {*METHODS}
