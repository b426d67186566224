"""A detector's verdict beside an answer, and the pages of a comparison's mistakes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clew import TraceBatchLoader
from clew.base.errors import InputError, StoreError
from clew.hallucination.answer_page.run import show_mistakes
from clew.hallucination.answer_page.verdict import read_verdicts
from clew.hallucination.comparison.report import write_report
from clew.hallucination.detectors.tokens import TokenProbe
from clew.hallucination.samples.preprocess import preprocess_store
from tests.hallucination.answer_page.making import (
    ANSWERS,
    THRESHOLD,
    make_picture,
    write_comparison,
    write_scores,
)
from tests.hallucination.samples.trace_stores import tiny_preprocess


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (3, "Low risk, but labeled hallucinated: missed."),
        (4, "High risk, but labeled correct: a false alarm."),
        (5, "High risk, and labeled hallucinated."),
        (6, "Low risk, and labeled correct."),
    ],
)
def test_risk_and_threshold_are_shown_beside_the_answer(
    compact_store: Path, tmp_path: Path, number: int, words: str
) -> None:
    comparison, out = write_comparison(tmp_path / "comparison"), tmp_path / "a.html"
    picture = make_picture(compact_store, out, str(number), comparison=comparison)
    risk = next(risk for known, _, _, risk in ANSWERS if known == number)
    verdict = picture.answers[0].verdict
    assert verdict is not None and (verdict.risk, verdict.threshold) == (risk, THRESHOLD)
    page = out.read_text(encoding="utf-8")
    assert words in page and f"LSTM: risk {risk:.3f}, " in page and "threshold of 0.600" in page


def test_label_comes_from_the_comparison_without_a_scores_file(
    compact_store: Path, tmp_path: Path
) -> None:
    comparison = write_comparison(tmp_path / "comparison")
    picture = make_picture(compact_store, tmp_path / "a.html", "3", comparison=comparison)
    assert (picture.answers[0].kind, picture.answers[0].score) == ("hallucinated", None)


def test_answer_of_the_training_split_has_a_note_instead_of_a_risk(
    compact_store: Path, tmp_path: Path
) -> None:
    comparison = write_comparison(tmp_path / "comparison")
    picture = make_picture(compact_store, tmp_path / "a.html", "7", comparison=comparison)
    assert picture.answers[0].verdict is None
    assert any(note.startswith("answer 7 has no risk") for note in picture.notes)


def test_comparison_of_other_answers_is_refused(compact_store: Path, tmp_path: Path) -> None:
    comparison = write_comparison(tmp_path / "comparison", question="other{}")
    with pytest.raises(InputError, match="comparison is .* it covers different answers"):
        make_picture(compact_store, tmp_path / "a.html", "3", comparison=comparison)
    with pytest.raises(StoreError, match="requires a finished comparison"):
        make_picture(compact_store, tmp_path / "a.html", "3", comparison=tmp_path)


@pytest.mark.slow
def test_report_links_a_page_per_mistake(compact_store: Path, tmp_path: Path) -> None:
    write_scores(compact_store, tmp_path / "scores.csv")
    samples = tmp_path / "samples"
    (tmp_path / "traces").symlink_to(compact_store)
    preprocess_store(tiny_preprocess(compact_store, tmp_path / "scores.csv", samples))
    comparison = write_comparison(tmp_path / "comparison")
    pages = show_mistakes(comparison, samples)
    assert [page.name for page in pages] == ["answer-3.html", "answer-4.html"]
    report = write_report(comparison).read_text(encoding="utf-8")
    for page in pages:
        assert f'href="answers/{page.name}"' in report
        assert 'class="gauge"' in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_missing_traces_remove_old_pages_and_report_names_the_command(
    compact_store: Path, tmp_path: Path
) -> None:
    comparison = write_comparison(tmp_path / "comparison")
    old, own = (comparison / "answers" / name for name in ("answer-9.html", "answer-mine.html"))
    make_picture(compact_store, old, "9")
    own.write_text("mine", encoding="utf-8")
    assert show_mistakes(comparison, tmp_path / "moved") == []
    assert not old.exists() and own.exists()
    report = write_report(comparison).read_text(encoding="utf-8")
    assert "clew show" in report and 'href="answers/' not in report


def test_tokens_are_shaded_by_the_token_probe_of_the_detector(
    compact_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = write_comparison(tmp_path / "comparison")
    traces = TraceBatchLoader(compact_store)
    layers, _, size = traces.get_trace_by_global_id(3)["nodes"].shape
    probe = TokenProbe(
        layers=(1,),
        weights=torch.linspace(-1, 1, size + 2),
        bias=0.5,
        pooling="mean",
        attention=torch.zeros(size + 2),
        without=0.0,
        trained_on="answers",
    )
    verdicts = replace(read_verdicts(comparison), probe=probe)
    monkeypatch.setattr("clew.hallucination.answer_page.verdict.read_verdicts", lambda _: verdicts)
    out = tmp_path / "a.html"
    answer = make_picture(compact_store, out, "3", comparison=comparison).answers[0]
    assert answer.risks is not None and layers > 1
    assert len(answer.risks) == len(answer.answer_texts)
    page = out.read_text(encoding="utf-8")
    assert "background: token risk" in page and 'class="by-risk"' in page
    assert f'title="risk {answer.risks[0]:.2f}, probability' in page
    alone = make_picture(compact_store, tmp_path / "b.html", "7", comparison=comparison)
    assert alone.answers[0].risks is None  # it is of the training split
    plain = (tmp_path / "b.html").read_text(encoding="utf-8")
    assert "background: 1 \N{MINUS SIGN} probability" in plain and 'class="by-chance"' in plain
