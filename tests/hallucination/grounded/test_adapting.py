"""`clew adapt` trains a reader further on one's own answers, or trains one on another model."""

from pathlib import Path

import pytest

import clew
from clew.base.errors import InputError
from clew.hallucination.grounded import Reader
from clew.hallucination.grounded.reader import load_reader
from tests.builders import save_tiny_model
from tests.hallucination.grounded.answers import make_answers, write_answers
from tests.hallucination.grounded.test_reader import make_reader


@pytest.mark.slow
def test_reader_is_adapted_to_labeled_answers(model_folder: Path, tmp_path: Path) -> None:
    write_answers(tmp_path / "mine.jsonl", 80)
    make_reader(model_folder, window=128, overlap=16).save(tmp_path / "reader")
    options = {"labeled": tmp_path / "mine.jsonl", "out": tmp_path / "adapted", "device": "cpu"}
    result = clew.adapt(tmp_path / "reader", **options)
    assert (result.labels, result.hallucinated) == (80, 40)
    assert result.auroc_before is not None and result.auroc_after is not None
    assert isinstance(result.detector, Reader)
    assert result.detector.read(make_answers(1))[0].risk is not None
    with pytest.raises(InputError, match="a reader is there already"):
        clew.adapt(tmp_path / "reader", **options)


@pytest.mark.slow
def test_reader_is_trained_on_another_model(model_folder: Path, tmp_path: Path) -> None:
    write_answers(tmp_path / "mine.jsonl", 80)
    make_reader(model_folder, window=128, overlap=16).save(tmp_path / "reader")
    other = save_tiny_model(tmp_path / "other", "qwen2")
    result = clew.adapt(
        tmp_path / "reader",
        labeled=tmp_path / "mine.jsonl",
        model=other,
        out=tmp_path / "adapted",
        device="cpu",
    )
    assert result.kept_ranking is None
    assert load_reader(tmp_path / "adapted", device="cpu").settings.model["id"] == str(other)


def test_reader_is_adapted_to_labeled_answers_only(model_folder: Path, tmp_path: Path) -> None:
    make_reader(model_folder).save(tmp_path / "reader")
    write_answers(tmp_path / "mine.jsonl", 4)
    labeled = {"labeled": tmp_path / "mine.jsonl", "rows": 2}
    for settings in ({"feedback": True}, labeled):
        with pytest.raises(InputError, match="adapted to `labeled` answers only"):
            clew.adapt(tmp_path / "reader", out=tmp_path / "adapted", **settings)
