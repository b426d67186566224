"""`clew calibrate`: a detector's calibration and threshold, fitted to somebody's own answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.errors import InputError
from clew.hallucination.comparison import compare_methods
from clew.hallucination.detectors.data import StoredAnswers
from clew.hallucination.samples.reading.answers import AnswerFeatures
from tests.hallucination.comparison.making import compare_config
from tests.hallucination.detectors.keeping import write_captured


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with samples, `other` samples and a comparison."""
    folder = tmp_path_factory.mktemp("calibrate")
    data = write_captured(folder / "pre", graphs=False, shards=3)
    write_captured(folder / "other", graphs=False, shards=3)
    compare_methods(compare_config(data, folder / "out", methods=("linear_probe", "lookback")))
    return folder


def write_risks(path: Path, *, method: str, count: int = 200, **changes: Any) -> Path:
    """Answers of which few are hallucinated, as "clew score" writes them."""
    random = np.random.default_rng(0)
    labels = random.random(count) < 0.2
    risks = np.clip(0.5 + 0.3 * labels + 0.1 * random.standard_normal(count), 0.01, 0.99)
    rows = [
        {
            "id": str(row),
            "risk": float(risk),
            "state": "checked",
            "method": method,
            "hallucinated": bool(label),
            **changes,
        }
        for row, (risk, label) in enumerate(zip(risks, labels, strict=True))
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_risks_of_labeled_answers_calibrate_a_detector(fitted: Path, tmp_path: Path) -> None:
    before = clew.load_detector(fitted / "out")
    risks = write_risks(tmp_path / "mine.jsonl", method=before.name)
    result = clew.calibrate(fitted / "out", risks=risks, target_fpr=0.05, out=tmp_path / "mine")
    after = clew.load_detector(tmp_path / "mine")
    assert result.ece_after < 0.1 < result.ece_before
    assert after.threshold == result.threshold_after != before.threshold
    assert clew.load_detector(fitted / "out").calibration == before.calibration
    answers = StoredAnswers(AnswerFeatures(fitted / "pre"), "test")
    assert (np.argsort(after._risks(answers)) == np.argsort(before._risks(answers))).all()


def test_samples_of_the_same_model_calibrate_a_detector(fitted: Path, tmp_path: Path) -> None:
    result = clew.calibrate(
        fitted / "out/detector", samples=fitted / "other", out=tmp_path / "mine"
    )
    assert result.answers > 100 and result.excluded  # empty answers have no risk
    again = clew.calibrate(tmp_path / "mine", samples=fitted / "other")
    assert again.path == tmp_path / "mine"
    assert again.threshold_after == pytest.approx(result.threshold_after, abs=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give either `risks` or `samples`"),
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
    ],
)
def test_risks_that_cannot_be_used_are_refused(
    fitted: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    name = clew.load_detector(fitted / "out").name
    risks = write_risks(tmp_path / "mine.jsonl", **{"method": name, **changes})
    with pytest.raises(InputError, match=message):
        clew.calibrate(fitted / "out", risks=risks)


def test_a_folder_without_a_detector_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no detector\.json"):
        clew.calibrate(tmp_path, risks="mine.jsonl")
