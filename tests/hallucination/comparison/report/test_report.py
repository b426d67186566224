"""What a reader of report.html gets, from a whole comparison."""

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from scipy.stats import spearmanr

from clew.hallucination.comparison.report import write_report
from clew.hallucination.comparison.report.agreement import rank_correlations
from tests.hallucination.comparison.report.making import (
    FINDINGS,
    METHODS,
    NETWORKS,
    change_results,
    make_comparison,
    read_results,
)
from tests.hallucination.comparison.report.reading import read_page
from tests.pages.reading import Page

pytestmark = pytest.mark.slow

SECTIONS = (
    *("methods", "table", "curves", "layers", "mistakes", "agreement", "disputed"),
    *("categories", "transfer", "training", "left-out", "data", "settings"),
)
PICTURES = {
    *("methods", "roc", "risk_coverage", "calibration", "layers", "losses"),
    *("agreement", "categories"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_comparison(tmp_path_factory.mktemp("comparison") / "out")
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_the_headline_names_the_best_and_what_it_beats(page: Page) -> None:
    headline = re.search(r"<h1[^>]*>(.*?)</h1>", page.markup)
    assert headline
    best = r"GNN-det \+ LSTM tells made-up answers from right ones with AUROC 0\.\d{3} \[0\.\d{3},"
    assert re.match(best, headline[1])
    assert "clearly above perplexity (0.7" in headline[1]


def test_it_says_whether_graphs_and_layers_helped(page: Page) -> None:
    assert FINDINGS["graphs"] in page.text
    assert re.search(r"Following the states across layers (helped|did not|made no)", page.text)


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_is_there_and_in_the_contents(page: Page, name: str) -> None:
    assert ("section", {"id": name}) in page.elements
    assert ("a", {"href": f"#{name}"}) in page.elements


@pytest.mark.parametrize("name", ["methods", "table", "curves", "agreement"])
def test_every_method_is_in_it(page: Page, name: str) -> None:
    part = page.section(name)
    assert [title for _, title, *_ in METHODS if title not in part] == []


def test_nothing_is_loaded_from_elsewhere(page: Page) -> None:
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page.markup)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {n for n, _ in page.elements}
    assert all("src" not in attributes for _, attributes in page.elements)


def test_a_panel_for_every_network_and_every_layered_probe(page: Page) -> None:
    assert page.section("training").count("<svg") == 2 * len(NETWORKS)
    assert page.section("layers").count("<svg") == 3


def test_mistakes_are_real_mistakes_with_their_texts(page: Page) -> None:
    trusted, distrusted = page.section("mistakes").split("Right, but distrusted")
    assert trusted.count("stamp made-up") == 5 and "stamp right" not in trusted
    assert distrusted.count("stamp right") == 5 and "stamp made-up" not in distrusted
    assert "What is the capital of" in trusted and "right is" in trusted


def test_what_was_left_out_is_named_with_its_reason(page: Page) -> None:
    assert "CHARM" in page.section("left-out")
    assert 'capture with keep="full", then' in page.text


def test_the_figures_lie_beside_it_and_are_linked(folder: Path, page: Page) -> None:
    figures = {path.stem for path in (folder / "figures").iterdir()}
    assert figures == PICTURES
    assert all(imread(folder / "figures" / f"{name}.png").std() > 0 for name in figures)
    links = {a["href"] for name, a in page.elements if name == "a" and a.get("class") == "png"}
    assert links == {f"figures/{name}.png" for name in PICTURES}


def test_a_picture_that_no_longer_holds_goes(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=20)
    (folder / "figures").mkdir()
    for name in ("transfer.png", "mine.png"):
        (folder / "figures" / name).write_bytes(b"old")
    write_report(folder)
    assert not (folder / "figures" / "transfer.png").exists()
    assert (folder / "figures" / "mine.png").exists()


def test_transfer_is_a_heat_map_a_method(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=20)
    names = [name for name, *_ in METHODS[:6]]
    table = [[0.91, 0.62], [None, 0.88]]
    transfer = {
        "stores": ["facts", "nq"],
        "train_on": ["facts", "nq"],
        "test_on": ["facts", "nq"],
        "methods": names,
        "titles": names,
        "auroc": [table] * len(names),
    }
    change_results(folder, transfer=transfer)
    part = Page(write_report(folder).read_text(encoding="utf-8")).section("transfer")
    assert part.count("<svg") == len(names)
    assert "trained on facts, tested on nq: AUROC 0.620" in part
    assert "trained on nq, tested on facts: not measured" in part
    assert (folder / "figures" / "transfer.png").exists()


def test_sentences_of_the_comparison_are_told_as_they_are(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=20)
    change_results(folder, findings={**FINDINGS, "few": "The test split has only 3 answers."})
    page = read_page(folder)
    assert FINDINGS["graphs"] in page.text and "The test split has only 3 answers." in page.text
    assert FINDINGS["best"] not in page.text and FINDINGS["baselines"] not in page.text


def test_a_best_that_beats_nothing_is_not_praised(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=20)
    change_results(folder, best={"method": "length", "chosen_on": "validation"})
    text = read_page(folder).text
    assert "and does not beat perplexity" in text and "clearly above perplexity" not in text


@pytest.mark.parametrize(
    ("p_value", "is_near"), [(0.2, True), (0.01, False), (None, True)], ids=["chance", "sure", "-"]
)
def test_what_may_be_chance_is_too_near_to_call(
    tmp_path: Path, p_value: float | None, is_near: bool
) -> None:
    """Where the intervals overlap, the paired test decides."""
    folder = make_comparison(tmp_path / "out", test=20)
    rows = read_results(folder)["methods"]
    versus = None if p_value is None else {"difference": -0.1, "p_value": p_value}
    wide = [{**row, "test_auroc_ci": [0.6, 1.0], "versus_best": versus} for row in rows]
    change_results(folder, methods=wide, best={"method": "gnn_det"})
    rows_by_name = {row["method"]: row["test_auroc"] for row in rows}
    assert rows_by_name["gnn_det"] > rows_by_name["perplexity"]
    text = read_page(folder).text
    assert ("too near to call" in text) == is_near
    assert (", above perplexity (0." in text) != is_near and "clearly above" not in text


def test_an_interval_that_reaches_chance_is_no_detection(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=20)
    rows = read_results(folder)["methods"]
    change_results(folder, methods=[{**row, "test_auroc_ci": [0.4, 1.0]} for row in rows])
    assert "does not tell made-up answers from right ones beyond chance" in read_page(folder).text


def test_rank_correlations_are_spearmans() -> None:
    scores = np.random.default_rng(0).integers(0, 9, size=(4, 50)).astype(float)
    expected = spearmanr(scores, axis=1).statistic
    np.testing.assert_allclose(rank_correlations(scores), expected, atol=1e-12)
