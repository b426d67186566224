"""`clew calibrate`: a detector's calibration and threshold, fitted to somebody's own answers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.base.errors import InputError
from clew.hallucination.comparison import compare_methods
from clew.hallucination.detectors.data import StoredAnswers
from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.workflow.scoring import describe_detector
from tests.hallucination.comparison.making import compare_config, describe_capture
from tests.hallucination.detectors.keeping import CAPTURE, write_captured
from tests.workspace import inside

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with samples, `other` samples and a comparison."""
    folder = tmp_path_factory.mktemp("calibrate")
    data = write_captured(folder / "pre", graphs=False, shards=3)
    write_captured(folder / "other", graphs=False, shards=3)
    compare_methods(compare_config(data, folder / "out", methods=("linear_probe", "lookback")))
    return folder


def write_risks(path: Path, detector: clew.Detector, *, count: int = 200, **changes: Any) -> Path:
    """Answers of which few are hallucinated, as "clew score" writes them with a detector."""
    random = np.random.default_rng(0)
    labels = random.random(count) < 0.2
    risks = np.clip(0.5 + 0.3 * labels + 0.1 * random.standard_normal(count), 0.01, 0.99)
    rows = [
        {
            "id": str(row),
            "risk": float(risk),
            "state": "checked",
            "method": detector.name,
            "threshold": round(detector.threshold, 6),
            "hallucinated": bool(label),
            **changes,
        }
        for row, (risk, label) in enumerate(zip(risks, labels, strict=True))
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_risks_of_labeled_answers_calibrate_a_detector(fitted: Path, tmp_path: Path) -> None:
    before = clew.load_detector(fitted / "out")
    risks = write_risks(tmp_path / "mine.jsonl", before)
    result = clew.calibrate(fitted / "out", risks=risks, target_fpr=0.05, out=tmp_path / "mine")
    after = clew.load_detector(tmp_path / "mine")
    assert result.ece_after < 0.1 < result.ece_before
    assert after.threshold == result.threshold_after != before.threshold
    assert result.false_positive_rate <= 0.05 < result.recall
    assert clew.load_detector(fitted / "out").calibration == before.calibration
    answers = StoredAnswers(AnswerFeatures(fitted / "pre"), "test")
    assert (np.argsort(after._risks(answers)) == np.argsort(before._risks(answers))).all()


def test_files_of_earlier_versions_have_the_risk_of_unfamiliar_answers_elsewhere(
    fitted: Path, tmp_path: Path
) -> None:
    detector = clew.load_detector(fitted / "out")
    assert detector.fallback is not None
    far = {"state": "out_of_distribution", "method": detector.fallback.scorer.statistic}
    results = []
    for value in ("risk", "token_probability_risk"):
        path = write_risks(tmp_path / f"{value}.jsonl", detector)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows[::4]:
            other = {"risk": None, value: row["risk"]}
            row |= {**far, **other, "threshold": round(detector.fallback.threshold, 6)}
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        results.append(clew.calibrate(fitted / "out", risks=path, out=tmp_path / f"{value}-out"))
    before, now = ({**one.as_dict(), "path": None} for one in results)
    assert before == now and now["out_of_distribution"] == 50


def test_samples_of_the_same_model_calibrate_a_detector(fitted: Path, tmp_path: Path) -> None:
    result = clew.calibrate(
        fitted / "out/detector", samples=fitted / "other", out=tmp_path / "mine"
    )
    assert result.answers > 100 and result.excluded  # empty answers have no risk
    again = clew.calibrate(tmp_path / "mine", samples=fitted / "other")
    assert again.path == tmp_path / "mine"
    settings = {"samples": fitted / "other", "out": tmp_path / "mine"}
    with pytest.raises(InputError, match="a detector is there already"):
        clew.calibrate(fitted / "out", **settings)
    assert clew.calibrate(fitted / "out", **settings, overwrite=True).path == again.path
    assert again.threshold_after == pytest.approx(result.threshold_after, abs=1e-3)


def _content(path: Path) -> object:
    """Of a detector, all but when it was made, and its checksum."""
    if path.name != "detector.json":
        return path.read_bytes()
    about = json.loads(path.read_bytes())
    return {name: about[name] for name in {*about} - {"created", "sha256", "clew_checksum"}}


def test_what_a_kill_left_in_a_new_folder_is_replaced(fitted: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    clew.calibrate(fitted / "out", samples=fitted / "other", out=out)
    whole = {path.name: _content(path) for path in out.iterdir()}
    (out / "detector.json").rename(out / "detector.json.0123abcd.tmp")
    clew.calibrate(fitted / "out", samples=fitted / "other", out=out)
    assert {path.name: _content(path) for path in out.iterdir()} == whole
    (out / "detector.json").rename(out / "mine.json")
    with pytest.raises(InputError, match="something else is there"):
        clew.calibrate(fitted / "out", samples=fitted / "other", out=out)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give either `labeled`, `risks` or `samples`"),
        ({"samples": "pre"}, "was fitted on the answers"),
        ({"samples": "other", "target_fpr": 1.5}, "target_fpr"),
    ],
)
def test_answers_that_cannot_be_used_are_refused(
    fitted: Path, settings: dict[str, Any], message: str
) -> None:
    if "samples" in settings:
        settings = {**settings, "samples": fitted / settings["samples"]}
    with pytest.raises(InputError, match=message):
        clew.calibrate(fitted / "out", **settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "saplma"}, "come from saplma, not from"),
        ({"count": 20}, "at least 10 correct and 10 hallucinated"),
        ({"hallucinated": None}, "0 of the 0 answers"),
        ({"risk": "high"}, "not a file of risks"),
        ({"threshold": 0.123}, r"threshold: 0\.123, not 0\.\d+\nScore the answers again"),
    ],
)
def test_risks_that_cannot_be_used_are_refused(
    fitted: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    risks = write_risks(tmp_path / "mine.jsonl", clew.load_detector(fitted / "out"), **changes)
    with pytest.raises(InputError, match=message):
        clew.calibrate(fitted / "out", risks=risks)


@pytest.mark.parametrize("has_summary", [False, True])
def test_risks_from_before_a_calibration_are_refused(
    fitted: Path, tmp_path: Path, has_summary: bool
) -> None:
    """Fitted again to the same risks, the slope would grow with every run."""
    folder = Path(shutil.copytree(fitted / "out/detector", tmp_path / "detector"))
    before = clew.load_detector(folder)
    risks = write_risks(tmp_path / "mine.jsonl", before)
    if has_summary:
        about = {"settings": {"detector": describe_detector(before)}}
        risks.with_name("mine.jsonl.summary.json").write_text(json.dumps(about))
    clew.calibrate(folder, risks=risks)
    after = clew.load_detector(folder)
    with pytest.raises(InputError, match="Score the answers again") as error:
        clew.calibrate(folder, risks=risks)
    assert ("calibration.slope" in str(error.value)) == has_summary
    assert clew.load_detector(folder).calibration == after.calibration


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "risk,hallucinated,state,method,threshold\n0.5,maybe,checked,x,0.5\n", "maybe"),
        ("a.jsonl", "[1]\n", r"a line is \[1\]"),
        ("a.jsonl", '{"hallucinated": 0}\n', "in row 1, hallucinated is 0, not true or false"),
    ],
)
def test_an_edited_file_of_risks_is_refused(
    fitted: Path, tmp_path: Path, name: str, text: str, reason: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=f"not a file of risks .*{reason}"):
        clew.calibrate(fitted / "out", risks=tmp_path / name)


def test_samples_of_another_prompt_are_refused(fitted: Path, tmp_path: Path) -> None:
    data = write_captured(tmp_path / "pre", graphs=False, shards=1)
    describe_capture(data, **{**CAPTURE, "prompt": {"template": "{question}", "chat": False}})
    with pytest.raises(InputError, match="for another prompt"):
        clew.calibrate(fitted / "out", samples=data)


def test_a_calibrated_detector_reports_its_own_figures(fitted: Path, tmp_path: Path) -> None:
    result = clew.calibrate(fitted / "out", samples=fitted / "other", out=tmp_path / "mine")
    metrics = result.detector.metrics
    assert metrics["threshold"] == result.threshold_after
    assert "test_auroc" in metrics and not {"test_ece", "test_f1"} & {*metrics}
    assert result.detector.kept.calibrated["ece_after"] == result.ece_after


def test_a_folder_without_a_detector_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no detector\.json"):
        clew.calibrate(tmp_path, risks="mine.jsonl")


def write_graded_risks(path: Path, detector: clew.Detector, *, far: int = 0) -> Path:
    """100 answers, of which the 40 with the highest risks are wrong; the first of them are not
    familiar."""
    write_risks(path, detector, count=100)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert detector.fallback is not None
    for number, row in enumerate(rows):
        row |= {"risk": (number + 1) / 101, "hallucinated": number >= 60}
        if number < far:
            other = {"risk": None, "token_probability_risk": 0.5, "threshold": None}
            method = detector.fallback.scorer.statistic
            row |= {**other, "state": "out_of_distribution", "method": method}
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_promise_is_kept_with_the_detector_and_its_curve_beside_it(
    fitted: Path, tmp_path: Path
) -> None:
    before = clew.load_detector(fitted / "out")
    risks = write_graded_risks(tmp_path / "mine.jsonl", before)
    result = clew.calibrate(fitted / "out", risks=risks, max_wrong_shown=0.1, out=tmp_path / "mine")
    promise = result.promise
    assert promise is not None and promise.shown >= 60 and promise.share_interval[0] > 0.5
    after = clew.load_detector(tmp_path / "mine")
    assert after.promise == promise and after.calibration == before.calibration
    assert after.threshold == promise.threshold
    assert "at most 10.0% of the answers shown are wrong (95% confidence)" in promise.text
    assert promise.text == after.as_dict()["promise"]
    page = (tmp_path / "mine/promise.html").read_text(encoding="utf-8")
    assert result.report == tmp_path / "mine/promise.html" and "<svg" in page
    assert (tmp_path / "mine/figures/promise.png").exists()
    assert before.promise is None


def test_unfamiliar_answers_count_as_not_shown_instead_of_being_refused(
    fitted: Path, tmp_path: Path
) -> None:
    detector = clew.load_detector(fitted / "out")
    risks = write_graded_risks(tmp_path / "mine.jsonl", detector, far=55)
    with pytest.raises(InputError, match="at least 10 correct and 10 hallucinated"):
        clew.calibrate(fitted / "out", risks=risks, out=tmp_path / "plain")
    settings = {"risks": risks, "out": tmp_path / "mine"}
    result = clew.calibrate(fitted / "out", **settings, max_wrong_shown=0.5, confidence=0.9)
    assert result.refusal is not None and result.refusal.not_familiar == 55
    assert "100 labeled answers (55 not familiar: not shown)" in result.text
    rows = [json.loads(line) for line in risks.read_text().splitlines()]
    for row in rows[55:]:
        row["hallucinated"] = False
    risks.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    result = clew.calibrate(fitted / "out", **settings, max_wrong_shown=0.1)
    assert result.promise is not None and result.promise.share_shown == 0.45
    assert "(55 not familiar: not shown)" in result.text


def test_refused_promise_changes_nothing_and_says_what_could_be_promised(
    fitted: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(fitted / "out/detector", tmp_path / "detector"))
    risks = write_graded_risks(tmp_path / "mine.jsonl", clew.load_detector(folder))
    before = (folder / "detector.json").read_bytes()
    page = tmp_path / "page/curve.html"
    result = clew.calibrate(folder, risks=risks, max_wrong_shown=0.01, report=page)
    refusal = result.refusal
    assert refusal is not None and result.promise is None and result.report == page
    assert (folder / "detector.json").read_bytes() == before and page.exists()
    assert refusal.could_promise is not None and 0.01 < refusal.could_promise < 0.1
    assert refusal.labels_needed is not None and refusal.labels_needed % 100 == 0
    assert refusal.least_withheld == pytest.approx((0.4 - 0.01) / 0.99)
    assert "even a perfect detector would have to withhold 39%" in result.text


def test_another_calibration_ends_a_promise(fitted: Path, tmp_path: Path) -> None:
    risks = write_graded_risks(tmp_path / "mine.jsonl", clew.load_detector(fitted / "out"))
    kept = tmp_path / "mine"
    detector = clew.calibrate(fitted / "out", risks=risks, max_wrong_shown=0.2, out=kept).detector
    assert detector.promise is not None
    assert replace(detector, threshold=0.9).promise is None
    clew.calibrate(kept, samples=fitted / "other")
    assert clew.load_detector(kept).promise is None


def test_file_of_labeled_answers_is_scored_first(workspace: Path, tmp_path: Path) -> None:
    with inside(workspace):
        rows = clew.score(questions="traces_data", detector="results/lstm/detector").rows
        lines = [{k: row[k] for k in ("question", "answer", "hallucinated")} for row in rows]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (tmp_path / "mine.jsonl").write_text(text)
        settings = {"labeled": tmp_path / "mine.jsonl", "max_wrong_shown": 0.9}
        result = clew.calibrate("results/lstm/detector", **settings, out=tmp_path / "mine")
    assert result.promise is not None and result.promise.answers == len(rows)
    with pytest.raises(InputError, match="give either `labeled`, `risks` or `samples`"):
        clew.calibrate(tmp_path / "mine", max_wrong_shown=0.1)


@pytest.fixture(scope="module")
def sourced(reader_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers with sources, labeled as an untrained reader ranks them."""
    path = tmp_path_factory.mktemp("sourced") / "mine.jsonl"
    rows = [{"source": f"It is {i * 37}.", "answer": f"It was {i * 91}."} for i in range(150)]
    risks = [row["risk"] for row in clew.score(questions=rows, detector=reader_folder).rows]
    limit = float(np.quantile(risks, 0.7))
    for row, risk in zip(rows, risks, strict=True):
        row["label"] = "hallucinated" if risk > limit else "correct"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_reader_is_calibrated_and_makes_promises(
    reader_folder: Path, sourced: Path, tmp_path: Path
) -> None:
    before = clew.load_reader(reader_folder).settings
    fitted = clew.calibrate(reader_folder, labeled=sourced, out=tmp_path / "fitted")
    settings = clew.load_reader(tmp_path / "fitted").settings
    assert settings.calibration != before.calibration and fitted.ece_after < fitted.ece_before
    promised = clew.calibrate(
        tmp_path / "fitted", labeled=sourced, max_wrong_shown=0.1, out=tmp_path / "promised"
    )
    assert promised.promise is not None and promised.report == tmp_path / "promised/promise.html"
    scored = clew.score(questions=sourced, detector=tmp_path / "promised")
    assert scored.promise == promised.text
    shown = clew.check(source="It is 0.", answer="It was 0.", reader=tmp_path / "promised")
    assert (shown.as_dict()["promise"] is not None) == (shown.risk_level == "low")
    clew.calibrate(tmp_path / "promised", labeled=sourced, target_fpr=0.2)
    assert clew.load_reader(tmp_path / "promised").settings.valid_promise is None


def test_the_built_in_reader_is_not_changed(sourced: Path) -> None:
    with pytest.raises(InputError, match="the built-in reader stays as it is"):
        clew.calibrate("grounded", labeled=sourced)
