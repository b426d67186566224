"""A classifier from somebody else loads as a sound one, or gives the documented error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.base.errors import StoreError
from clew.engine.folders import BEST
from clew.patterns.networks import build_network
from clew.patterns.trained.model import load_classifier
from clew.patterns.training.start import Start
from tests.engine.hostile_models import (
    ODD_VALUES,
    about_edits,
    byte_edits,
    join,
    replaced,
    split,
    tensor_edits,
    with_about,
)
from tests.patterns.trained.tiny import RESULTS, write_classifier

IMAGES = np.zeros((1, 16, 16, 3), np.uint8)


def loads_soundly(folder: Path) -> bool:
    """Whether the model is refused as documented (False), or its probabilities are (True)."""
    try:
        model = load_classifier(folder, "cpu")
        images = np.zeros((1, model.image_size, model.image_size, 3), np.uint8)
        found = model.probabilities(images)
    except StoreError as error:
        assert len(str(error)) < 1500
        return False
    assert found.shape == (1, len(set(model.classes))) and np.isfinite(found).all()
    return True


@pytest.mark.slow
def test_edited_classifier_is_refused_or_sound(tmp_path: Path) -> None:
    data = (write_classifier(tmp_path) / BEST).read_bytes()
    edits = [*tensor_edits(data), *list(byte_edits(data))[:20], *about_edits(data)]
    outcomes = []
    for what, edited in edits:
        if what.startswith("best"):
            continue  # not read
        (tmp_path / BEST).write_bytes(edited)
        outcomes.append(loads_soundly(tmp_path))
    assert outcomes.count(False) > 50 and any(outcomes)


@pytest.mark.parametrize("value", [0, -1, 1e-300, 1e300, *ODD_VALUES.values()])
def test_edited_temperature_is_refused(tmp_path: Path, value: Any) -> None:
    write_classifier(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps({**RESULTS, "temperature": value}))
    with pytest.raises(StoreError, match=r"results.json\" cannot be read .*delete it"):
        load_classifier(tmp_path, "cpu")


@pytest.mark.parametrize("classes", [["a", "a"], ["", "b"], [".."], ["a/../b", "c"], ["a\0", "b"]])
def test_class_that_no_folder_can_have_is_refused(tmp_path: Path, classes: list[str]) -> None:
    path = write_classifier(tmp_path) / BEST
    at = ("settings", "classes")
    path.write_bytes(with_about(path.read_bytes(), lambda old: replaced(old, at, classes)))
    with pytest.raises(StoreError, match="not an image classifier .*class"):
        load_classifier(tmp_path, "cpu")


def test_training_does_not_start_from_nan(tmp_path: Path) -> None:
    path = write_classifier(tmp_path) / BEST
    header, body = split(path.read_bytes())
    first, _ = header["network.classify.weight"]["data_offsets"]
    path.write_bytes(join(header, body[:first] + b"\x00\x00\xc0\x7f" + body[first + 4 :]))
    start = Start(
        folder=tmp_path, network="tiny", image_size=16, classes=("a", "b"), digest="", splits={}
    )
    with pytest.raises(StoreError, match="contains NaN.*train again"):
        start.load_into(build_network("tiny", classes=2, image_size=16), ("a", "c"))


def test_negative_variance_is_refused(tmp_path: Path) -> None:
    path = write_classifier(tmp_path) / BEST
    header, body = split(path.read_bytes())
    name = next(name for name in header if name.endswith("running_var"))
    first, _ = header[name]["data_offsets"]
    spoiled = body[:first] + np.float32(-1).tobytes() + body[first + 4 :]
    path.write_bytes(join(header, spoiled))
    with pytest.raises(StoreError, match=r"running_var contains .* negative variance.*train again"):
        load_classifier(tmp_path, "cpu")


def test_weights_that_overflow_are_reported_instead_of_nan(tmp_path: Path) -> None:
    path = write_classifier(tmp_path) / BEST
    header, body = split(path.read_bytes())
    for name in [name for name in header if name.endswith("weight")]:
        first, end = header[name]["data_offsets"]
        huge = np.full((end - first) // 4, 3e38, np.float32).tobytes()
        body = body[:first] + huge + body[end:]
    path.write_bytes(join(header, body))
    with pytest.raises(StoreError, match="returns NaN or infinity: its weights are damaged"):
        load_classifier(tmp_path, "cpu").probabilities(IMAGES + 200)
