"""A check of a model is remembered per machine."""

from pathlib import Path

import pytest

import clew
from clew.hallucination.llm import checked
from clew.hallucination.llm.checked import Checked, CheckMemory
from clew.hallucination.llm.models import LoadedModel
from clew.hallucination.traces.compact import BASIS_NAME


def test_small_models_are_checked_each_time(loaded: LoadedModel) -> None:
    assert CheckMemory.of_model(loaded.model) is None


def test_check_is_not_repeated_on_the_same_machine(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "_FEWEST_PARAMETERS", 0)
    memory = CheckMemory.of_model(loaded.model, tmp_path)
    assert memory is not None and memory.recall() is None
    memory.keep(Checked(graphs=False, packs=False, error=1e-6))
    again = CheckMemory.of_model(loaded.model, tmp_path)
    assert again is not None and again.recall() == memory.recall()
    memory.path.write_text("{")
    assert memory.recall() is None


def test_second_capture_does_not_check_again(
    loaded: LoadedModel, questions_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "_FEWEST_PARAMETERS", 0)
    monkeypatch.setattr(checked.platformdirs, "user_cache_dir", lambda _: tmp_path / "cache")
    told: list[str] = []
    for name in ("first", "second"):
        clew.extract(
            model=loaded,
            questions=questions_file,
            num_samples=3,
            max_new_tokens=4,
            out=tmp_path / name,
            reporter=lambda event: told.append(str(event)),
        )
    about = [text for text in told if "single-prompt passes" in text]
    assert ["check passed" in text for text in about if text.startswith("check")] == [True]
    assert "on this machine before" in about[-1]
    bases = [text for text in told if "basis" in text]
    assert "fitting" in bases[0] and "was fitted on this machine before" in bases[-1]
    first, second = ((tmp_path / name / BASIS_NAME).read_bytes() for name in ("first", "second"))
    assert first == second
