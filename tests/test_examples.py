"""The examples run as they stand."""

import ast
import runpy
import sys
from pathlib import Path

import pytest

from clew.patterns.photos import find_classes
from tests.hallucination.detectors.training.making import write_learnable
from tests.stores import one_thread

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
def test_a_network_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The example leaves its first weights to chance: with so many samples any do.
    samples = write_learnable(tmp_path / "preprocessed_data", rows=300)
    out = tmp_path / "results_own"
    monkeypatch.setattr(sys, "argv", ["own_model.py", str(samples), str(out)])
    with one_thread():
        runpy.run_path(str(EXAMPLES / "own_model.py"), run_name="__main__")
    metrics = ast.literal_eval(capsys.readouterr().out)
    assert metrics["auroc"] > 0.75
    assert (out / "best.safetensors").exists() and (out / "log.csv").exists()


def test_it_takes_ten_lines() -> None:
    text = (EXAMPLES / "own_model.py").read_text()
    code = text[text.index("class LastLayer") :].splitlines()
    assert len([line for line in code if line.strip()]) <= 10


@pytest.mark.slow
def test_digits_become_photos_in_class_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["digit_photos.py", str(tmp_path / "digits")])
    runpy.run_path(str(EXAMPLES / "digit_photos.py"), run_name="__main__")
    found = find_classes(tmp_path / "digits")
    assert found.classes == tuple("0123456789")
    assert len(found.photos) == 1797 and not found.faults
