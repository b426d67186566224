"""A detector file from somebody else loads as a sound detector, or gives the documented error."""

from collections import Counter
from pathlib import Path

import pytest

from clew.base.errors import StoreError
from clew.hallucination.detectors.detector_folder import load_detector
from tests.engine.hostile_models import (
    Edit,
    about_edits,
    byte_edits,
    other_files,
    replaced,
    tensor_edits,
    with_about,
)
from tests.hallucination.detectors.tiny import SIZES, write_detector

_NETWORK_EDITS = ("missing", "huge", "billion", "NaN", "negative", "text")


def loads_soundly(path: Path) -> bool:
    """Whether the file is refused as documented (False), or gives a detector without NaN (True)."""
    try:
        detector = load_detector(path)
    except StoreError as error:
        assert len(str(error)) < 1500
        return False
    assert all(value.isfinite().all() for value in detector.network.state_dict().values())
    assert isinstance(detector.threshold, float) and -0.5 <= detector.threshold <= 1
    assert "Detector" in repr(detector)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_edited_detector_is_refused_or_sound(tmp_path: Path, name: str) -> None:
    data = write_detector(tmp_path / "a.safetensors", name).read_bytes()
    changed = tmp_path / "b.safetensors"
    outcomes: Counter[bool] = Counter()
    for what, edited in (*tensor_edits(data), *about_edits(data)):
        if name != "lstm" and not (
            what.startswith("settings.network_config") and what.endswith(_NETWORK_EDITS)
        ):
            continue  # the same for every network
        changed.write_bytes(edited)
        outcomes[loads_soundly(changed)] += 1
    assert outcomes[False] > 15 and outcomes[True]


@pytest.mark.slow
def test_damaged_detector_is_refused_or_sound(tmp_path: Path) -> None:
    data = write_detector(tmp_path / "a.safetensors", "lstm").read_bytes()
    for _, edited in byte_edits(data):
        (tmp_path / "b.safetensors").write_bytes(edited)
        loads_soundly(tmp_path / "b.safetensors")


@pytest.mark.parametrize("make", [make for _, make in other_files()])
def test_what_is_not_a_file_is_refused_as_a_detector(tmp_path: Path, make: Edit) -> None:
    path = tmp_path / "model.safetensors"
    make(path)
    with pytest.raises(StoreError, match="cannot be read|there is no|of memory"):
        load_detector(path)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("threshold", float("nan"), "best.threshold is nan"),
        ("threshold", "0.5", "best.threshold is '0.5'"),
        ("threshold", 2.0, "best.threshold is 2.0"),
        ("threshold", -1.0, "best.threshold is -1.0"),
        ("metrics", {"auroc": "high"}, "best.metrics.auroc is 'high'"),
    ],
)
def test_error_names_the_entry_and_its_value(
    tmp_path: Path, entry: str, value: object, message: str
) -> None:
    path = write_detector(tmp_path / "a.safetensors", "lstm")
    edited = with_about(path.read_bytes(), lambda old: replaced(old, ("best", entry), value))
    path.write_bytes(edited)
    with pytest.raises(StoreError, match=f"not a detector .*{message}.*give a best.safetensors"):
        load_detector(path)


def test_detector_without_a_threshold_uses_one_half(tmp_path: Path) -> None:
    path = write_detector(tmp_path / "a.safetensors", "lstm")
    path.write_bytes(
        with_about(path.read_bytes(), lambda old: replaced(old, ("best", "threshold"), None))
    )
    assert load_detector(path).threshold == 0.5
