"""What a reader of report.html gets, from a whole comparison."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from scipy.stats import spearmanr

from clew.hallucination.comparison.report import write_report
from clew.hallucination.comparison.report.answers import listed_mistakes, rank_correlations
from clew.hallucination.comparison.report.comparison import read_comparison
from clew.hallucination.comparison.report.methods import draw_categories
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

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_pictures")]

SECTIONS = (
    *("methods", "table", "curves", "layers", "mistakes", "agreement", "disputed"),
    *("categories", "training", "excluded", "data", "settings"),
)
PICTURES = {
    *("methods", "roc", "risk_coverage", "calibration", "layers", "losses"),
    *("agreement", "categories"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With one figure of an earlier report, and a file of the user."""
    folder = make_comparison(tmp_path_factory.mktemp("comparison") / "out")
    (folder / "figures").mkdir()
    for name in ("transfer.png", "mine.png"):
        (folder / "figures" / name).write_bytes(b"old")
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_headline_is_what_the_comparison_found_about_the_best_method(page: Page) -> None:
    headline = re.search(r"<h1[^>]*>(.*?)</h1>", page.markup)
    assert headline
    assert headline[1] == FINDINGS["best"]


def test_further_findings_stand_below_the_figure_of_the_methods(page: Page) -> None:
    header, _, rest = page.markup.partition("</header>")
    assert FINDINGS["baselines"] not in header and FINDINGS["baselines"] in page.section("methods")
    assert rest.index("<svg") < rest.index(FINDINGS["baselines"])


def test_page_says_whether_graphs_and_layers_helped(page: Page) -> None:
    assert FINDINGS["graphs"] in page.text
    assert FINDINGS["layers"] in page.text


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_is_on_the_page_and_in_the_contents(page: Page, name: str) -> None:
    assert ("section", {"id": name}) in page.elements
    assert ("a", {"href": f"#{name}"}) in page.elements


@pytest.mark.parametrize("name", ["methods", "table", "curves", "agreement"])
def test_section_shows_every_method(page: Page, name: str) -> None:
    part = page.section(name)
    assert [title for _, title, *_ in METHODS if title not in part] == []


def test_page_loads_nothing_from_elsewhere(page: Page) -> None:
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page.markup)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {n for n, _ in page.elements}
    assert all("src" not in attributes for _, attributes in page.elements)


def test_every_network_and_every_probe_by_layer_has_a_panel(page: Page) -> None:
    assert page.section("training").count("<svg") == 2 * len(NETWORKS)
    assert page.section("layers").count("<svg") == 3


def test_mistakes_are_listed_with_their_texts(page: Page) -> None:
    missed, alarms = page.section("mistakes").split("False alarms: labeled correct, but high risk")
    assert missed.count("stamp hallucinated") == 5 and "stamp correct" not in missed
    assert alarms.count("stamp correct") == 5 and "stamp hallucinated" not in alarms
    assert "What is the capital of" in missed and "accepted" in missed


def test_excluded_methods_are_named_with_their_reason(page: Page) -> None:
    assert "CHARM" in page.section("excluded")
    assert 'run "clew extract" with keep="full", then' in page.text


def test_figures_are_written_and_linked(folder: Path, page: Page) -> None:
    figures = {path.stem for path in (folder / "figures").iterdir()} - {"mine"}
    assert figures == PICTURES
    assert all(imread(folder / "figures" / f"{name}.png").std() > 0 for name in figures)
    links = {a["href"] for name, a in page.elements if name == "a" and a.get("class") == "png"}
    assert links == {f"figures/{name}.png" for name in PICTURES}


def test_outdated_figure_is_removed(folder: Path) -> None:
    assert not (folder / "figures" / "transfer.png").exists()
    assert (folder / "figures" / "mine.png").exists()


def test_transfer_has_a_heat_map_per_method(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=20)
    shutil.rmtree(folder / "networks")  # whose losses would be drawn too
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
    rows = [{**row, "by_layer": None} for row in read_results(folder)["methods"][:6]]
    change_results(folder, transfer=transfer, methods=rows, best={"method": names[0]})
    part = Page(write_report(folder).read_text(encoding="utf-8")).section("transfer")
    assert part.count("<svg") == len(names)
    assert "trained on facts, tested on nq: AUROC 0.620" in part
    assert "trained on nq, tested on facts: not measured" in part
    assert (folder / "figures" / "transfer.png").exists()


def test_section_with_nothing_to_show_is_hidden_and_its_reason_listed(page: Page) -> None:
    assert ("section", {"id": "transfer"}) not in page.elements
    assert ("a", {"href": "#transfer"}) not in page.elements
    assert "Empty sections: unseen sets, tokens, transfer" in page.text
    assert "Only one question set was compared." in page.text


def test_calibration_starts_with_the_best_method_and_perplexity(page: Page) -> None:
    curves = page.section("curves")
    calibration = curves[curves.index('class="panel sparse"') :]
    shown = re.findall(r'<g class="curve \w+ shown" data-key="(\w+)"', calibration)
    assert set(shown) == {"gnn_det", "perplexity"}


def test_costs_have_sensible_digits(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=20)
    costs = {"ms_per_answer": 0.00833, "train_seconds": 61.2, "parameters": 10_789_429}
    rows = [{**row, **costs} for row in read_results(folder)["methods"]]
    change_results(folder, methods=rows)
    table = read_page(folder).section("table")
    assert ">8.3 µs<" in table and ">61 s<" in table and ">10.8M<" in table


def test_column_without_values_is_hidden(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=20)
    assert ">seeds</button>" in read_page(folder).section("table")
    rows = [{**row, "seeds": 1} for row in read_results(folder)["methods"]]
    change_results(folder, methods=rows)
    assert ">seeds</button>" not in read_page(folder).section("table")


def test_mistake_links_to_the_page_of_its_answer(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out")
    number = listed_mistakes(read_comparison(folder))[0]
    assert f'run "clew show" with its number, such as {number}.' in read_page(folder).text
    page = folder / "answers" / f"answer-{number}.html"
    page.parent.mkdir()
    page.touch()
    part = read_page(folder).section("mistakes")
    assert f'<a href="answers/answer-{number}.html"' in part and part.count("<a ") == 1


def test_comparison_of_earlier_version_can_be_read(tmp_path: Path) -> None:
    """There, a risk was a score, and correct and hallucinated were right and made up."""
    folder = make_comparison(tmp_path / "out", test=20)
    results = read_results(folder)
    assert results["data"]["test"] == {"right": 8, "made_up": 12} and "left_out" in results
    page = read_page(folder)
    assert " 60%" in page.section("data") and "CHARM" in page.section("excluded")
    new = {"test": {"correct": 4, "hallucinated": 16}}
    excluded = [{"method": "charm", "title": "CHARM 2", "reason": ""}]
    change_results(folder, data=new, excluded=excluded, left_out=[])
    page = read_page(folder)
    assert " 80%" in page.section("data") and "CHARM 2" in page.section("excluded")


def test_findings_of_the_comparison_are_kept_verbatim(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=20)
    change_results(folder, findings={**FINDINGS, "few": "The test split has only 3 answers."})
    page = read_page(folder)
    assert all(page.text.count(sentence) == 1 for sentence in FINDINGS.values())
    assert "The test split has only 3 answers." in page.text


def test_headline_of_a_folder_without_findings_names_the_best_method(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=20)
    change_results(folder, findings=None)
    assert re.search(r"SAPLMA reaches an AUROC of \d\.\d{3} \[", read_page(folder).text)


def test_headline_of_one_method_names_no_choice(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=20)
    assert (
        f"It was chosen from {len(METHODS)} methods on the validation split and measured"
        in read_page(folder).text
    )
    row = {**read_results(folder)["methods"][0], "seeds": 1}
    change_results(folder, methods=[row], best={"method": row["method"]})
    text = read_page(folder).text
    assert "It was measured on 20 test answers" in text
    assert "median validation AUROC of" not in text


def test_headline_of_several_seeds_names_the_median(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=20)
    rows = read_results(folder)["methods"]
    change_results(folder, methods=[{**row, "seeds": 3} for row in rows])
    said = "The figures are those of the seed with the median validation AUROC of 3."
    assert said in read_page(folder).text


def test_category_with_few_answers_has_no_interval(tmp_path: Path) -> None:
    few = read_comparison(make_comparison(tmp_path / "few", test=20))
    rows = draw_categories(few, [few.best])
    known = [row for row in rows if row.value is not None]
    assert known
    assert all(row.interval is None and row.text.endswith(" \N{EN DASH}") for row in known)
    many = read_comparison(make_comparison(tmp_path / "many", test=300))
    rows = draw_categories(many, [many.best])
    assert all(row.interval is not None for row in rows)


def test_rank_correlations_match_spearman() -> None:
    scores = np.random.default_rng(0).integers(0, 9, size=(4, 50)).astype(float)
    expected = spearmanr(scores, axis=1).statistic
    np.testing.assert_allclose(rank_correlations(scores), expected, atol=1e-12)
