"""Hostile texts, missing parts, damaged folders."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew.base.errors import StoreError
from clew.hallucination.comparison.report import write_report
from clew.hallucination.comparison.report.comparison import read_comparison
from clew.hallucination.comparison.report.page import make_page
from tests.hallucination.comparison.report.making import (
    NETWORKS,
    change_results,
    make_comparison,
    read_results,
)
from tests.hallucination.comparison.report.reading import read_page
from tests.pages.reading import Page

pytestmark = pytest.mark.slow

EVIL = (
    '<script>document.title="owned"</script><img src=x onerror=alert(1)>\'"><svg onload=alert(1)>'
)
TEXTS: list[dict[str, Any]] = [
    {"question": EVIL, "answer": EVIL, "accepted_answers": EVIL, "category": EVIL},
    {"question": "מהי בירת צרפת? \u202e", "answer": "פריז", "accepted_answers": "باريس"},
    {"question": "🗼🇫🇷 $x_1$?", "answer": "👩‍👩‍👧", "category": None, "accepted_answers": None},
    {"question": "Tell me all.", "answer": "ha " * 7000, "category": ""},
    {"question": "x" * 600, "answer": "\x00\x08bell\x1b[31m", "accepted_answers": ""},
    {"question": "", "answer": None},
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_comparison(tmp_path_factory.mktemp("made") / "out", test=6, texts=TEXTS)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy, to change or to damage."""
    return Path(shutil.copytree(made, tmp_path / "out"))


def keep_logs(folder: Path, *names: str) -> None:
    """Drawing the losses of every network takes seconds."""
    for path in (folder / "networks").iterdir():
        if path.name not in names:
            shutil.rmtree(path)


@pytest.mark.usefixtures("real_pictures")
def test_texts_never_become_markup(folder: Path) -> None:
    keep_logs(folder, "gnn_det")
    results = read_results(folder)
    results["left_out"] = [{"method": EVIL, "title": EVIL, "reason": EVIL}]
    results["methods"][0]["title"] = results["methods"][-3]["title"] = EVIL
    results["methods"][0]["chosen"] = {EVIL: EVIL}
    change_results(
        folder,
        **{name: results[name] for name in ("left_out", "methods")},
        capture={"model": EVIL},
        data={"name": EVIL, EVIL: EVIL},
        findings={EVIL: EVIL},
        versions={EVIL: "half a pair \ud800"},
    )
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert page.count("script") == 1 and page.count("img") == 0
    assert not [a for _, attributes in page.elements for a in attributes if a.startswith("on")]
    assert EVIL in page.text and "half a pair \N{REPLACEMENT CHARACTER}" in page.text


def test_right_to_left_text_emoji_and_long_answers_are_kept(folder: Path) -> None:
    page = read_page(folder)
    for text in ("מהי בירת צרפת?", "פריז", "🗼🇫🇷 $x_1$?", "👩‍👩‍👧", "(no category)"):
        assert text in page.text
    assert "all 21,000 characters" in page.text and "(truncated; " in page.text
    assert "\x00" not in page.markup and "\x1b" not in page.markup
    assert page.markup.count("ha ha ha") < 20_000


def test_four_test_answers_are_enough(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=4)
    assert "chosen from 18 methods" in read_page(folder).text


@pytest.mark.usefixtures("real_pictures")
def test_answers_with_one_label_give_no_curves_and_the_reason(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "out", test=3, one_label=True)
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "Curves require both correct and hallucinated test answers" in page.text
    assert not (folder / "figures" / "roc.png").exists()


@pytest.mark.usefixtures("real_pictures")
def test_missing_figures_are_dashes(folder: Path) -> None:
    keep_logs(folder)
    kept = ("method", "title", "family")
    bare = [{name: row[name] for name in kept} for row in read_results(folder)["methods"]]
    bare[1] |= {"test_auroc": float("nan"), "test_auroc_ci": [None, None], "chosen": None}
    bare[2] |= {"family": "divination", "by_layer": {"validation": [None, 0.7], "test": []}}
    bare[3] |= {"by_layer": {"validation": [None]}, "versus_best": {"difference": None}}
    change_results(folder, methods=bare, findings=None)
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "its test AUROC is unknown" in page.text
    assert "Mean entropy" in page.text


def test_comparison_of_one_method_is_shown(folder: Path) -> None:
    rows = [row for row in read_results(folder)["methods"] if row["method"] not in NETWORKS]
    shutil.rmtree(folder / "networks")
    (folder / "results.json").write_text(json.dumps({"methods": rows[:1]}), encoding="utf-8")
    page = read_page(folder)
    assert "No network wrote a training log." in page.text
    assert "This requires at least two methods" in page.text
    assert "Every selected method was run." in page.text


def test_method_without_risks_keeps_its_row(folder: Path) -> None:
    rows = read_results(folder)["methods"]
    new = {**rows[0], "method": "mine", "title": "Mine alone"}
    change_results(folder, methods=[*rows, new], best={"method": "mine"})
    page = read_page(folder)
    assert "Mine alone" in page.section("table") and "Mine alone" not in page.section("curves")
    assert "There are no per-answer risks from Mine alone." in page.text


@pytest.mark.parametrize("log", ["", "epoch,train_loss,val_loss,val_auroc\n1,0.7,,\n"])
def test_short_training_log_is_shown(folder: Path, log: str) -> None:
    (folder / "networks" / "lstm" / "seed-0" / "log.csv").write_text(log, encoding="utf-8")
    assert "LSTM over layers" in read_page(folder).section("training")


def damage_results(folder: Path) -> None:
    (folder / "results.json").write_text("{", encoding="utf-8")


def results_of_training(folder: Path) -> None:
    (folder / "results.json").write_text('{"runs": []}', encoding="utf-8")


def remove_results(folder: Path) -> None:
    (folder / "results.json").unlink()


def remove_scores(folder: Path) -> None:
    (folder / "scores.arrow").unlink()


def cut_scores(folder: Path) -> None:
    path = folder / "scores.arrow"
    path.write_bytes(path.read_bytes()[:100])


def scores_of_something_else(folder: Path) -> None:
    table = pa.table({"split": ["test"]})
    with pa.ipc.new_file(folder / "scores.arrow", table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_results, r'no "results.json" in .* requires a finished comparison'),
        (damage_results, r"results.json\" cannot be read .* again"),
        (results_of_training, r"lists no methods, so it was not written by a comparison"),
        (remove_scores, r'no "scores.arrow" in'),
        (cut_scores, r"scores.arrow\" cannot be read"),
        (scores_of_something_else, r"has no column label"),
    ],
)
def test_damaged_folder_is_refused_with_what_to_do(folder: Path, damage: Any, message: str) -> None:
    damage(folder)
    with pytest.raises(StoreError, match=message) as refused:
        write_report(folder)
    assert 'Run "clew compare"' in str(refused.value)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("odd", [7, "text", [3], [["x", None]], {}])
def test_odd_figures_of_sets_leave_empty_cells(tmp_path: Path, odd: Any) -> None:
    folder = make_comparison(tmp_path / "out", test=20)
    names = {"sets": ["facts", "nq"], "titles": ["LSTM"], "methods": ["lstm"]}
    figures = dict.fromkeys(("auroc", "low", "high", "mean", "answers", "correct"), odd)
    change_results(folder, leave_one_out={**names, **figures}, transfer={**names, **figures})
    page = make_page(read_comparison(folder))
    assert "LSTM on facts: not measured" in page
