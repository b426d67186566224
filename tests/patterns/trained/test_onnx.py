"""The ONNX file gives the model's predictions, on photos, without torch."""

import copy
import json
import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clew.base.errors import ClewError, InputError
from clew.patterns.photos.decode import read_square
from clew.patterns.trained.export import ExportedModel, export_onnx, sample_images
from clew.patterns.trained.model import Judged, PatternModel, load_classifier
from tests.patterns.report.making import SIZE, draw_photo, make_run

onnx = pytest.importorskip("onnx", reason='no onnx here: pip install "clew[onnx]"')
runtime = pytest.importorskip("onnxruntime", reason='no onnxruntime: pip install "clew[onnx]"')
pytestmark = pytest.mark.slow
CLASSES = ("gato ñ", "dog 🐕", "2", "10")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run") / "out", classes=CLASSES)


@pytest.fixture(scope="module")
def model(folder: Path) -> PatternModel:
    return load_classifier(folder, device="cpu")


@pytest.fixture(scope="module")
def exported(model: PatternModel, tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    return export_onnx(model, tmp_path_factory.mktemp("a b") / "new" / "m é.onnx")


@pytest.fixture(scope="module")
def path(exported: ExportedModel) -> Path:
    return exported.path


def open_file(path: Path) -> Any:
    return runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("batch", [1, 7])
def test_onnx_gives_the_same_probabilities_for_photos(
    path: Path, model: PatternModel, tmp_path: Path, batch: int
) -> None:
    for number in range(batch):
        draw_photo(tmp_path / f"{number}.png", number, 99, sides=(120, 80))
    images = np.stack([read_square(tmp_path / f"{n}.png", SIZE) for n in range(batch)])
    (found,) = open_file(path).run(["probabilities"], {"image": images})
    expected = model.probabilities(images)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    assert batch == 1 or np.ptp(expected, axis=0).max() > 0.05, "they should not be all the same"


def test_onnx_looks_closer_as_the_model_does(model: PatternModel, tmp_path: Path) -> None:
    closer = replace(model, looks_closer=True)
    exported = export_onnx(closer, tmp_path / "closer.onnx")
    images, _ = sample_images(model, 3)
    (found,) = open_file(exported.path).run(["probabilities"], {"image": images})
    np.testing.assert_allclose(found, closer.probabilities(images), atol=1e-5)
    assert np.abs(found - model.probabilities(images)).max() > 1e-3


def test_onnx_describes_its_input_and_output(path: Path) -> None:
    session = open_file(path)
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, given.shape[1:]) == ("image", "tensor(uint8)", [SIZE, SIZE, 3])
    assert (made.name, made.shape[1:]) == ("probabilities", [len(CLASSES)])
    about = session.get_modelmeta().custom_metadata_map
    assert tuple(json.loads(about["classes"])) == CLASSES
    assert about["image_size"] == str(SIZE)
    assert json.loads(about["input"])["colors"] == "RGB"
    assert json.loads(about["scaling"])["inside"] and json.loads(about["calibration"])["inside"]


def test_onnx_is_one_file_without_local_paths(path: Path) -> None:
    assert [one.name for one in path.parent.iterdir()] == ["m é.onnx"]
    content = path.read_bytes()
    assert b".py" not in content and str(Path.home()).encode() not in content


def test_onnx_is_checked_with_training_photos(exported: ExportedModel) -> None:
    assert exported.with_photos and exported.checked == 24 and exported.difference < 1e-4


def test_onnx_is_checked_with_random_images_without_photos(folder: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(folder, tmp_path / "alone"))
    (alone / "splits.csv").unlink()
    images, are_photos = sample_images(load_classifier(alone, device="cpu"), 32)
    assert images.shape == (32, SIZE, SIZE, 3) and not are_photos


def test_export_is_quiet_and_independent_of_the_memory_format(
    model: PatternModel, path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    network = copy.deepcopy(model.network).to(memory_format=torch.channels_last)
    export_onnx(replace(model, network=network), tmp_path / "m.onnx")
    assert capfd.readouterr() == ("", "")
    assert (tmp_path / "m.onnx").read_bytes() == path.read_bytes()
    weights = [p for p in network.parameters() if p.ndim == 4 and p.shape[2] > 1]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)


class OtherAnswers(PatternModel):
    """As if torch and onnxruntime disagreed."""

    def judge(self, images: Any) -> Judged:
        probabilities, typicality = super().judge(images)
        return Judged(probabilities[::-1], typicality)


def test_file_with_different_predictions_is_never_written(
    model: PatternModel, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = path.read_bytes()  # converting it once more would take seconds
    monkeypatch.setattr("clew.patterns.trained.export._to_onnx", lambda *_, **__: content)
    (tmp_path / "m.onnx").write_text("what was there before")
    other = OtherAnswers(**{field.name: getattr(model, field.name) for field in fields(model)})
    with pytest.raises(ClewError, match=r"different predictions .* no file was written"):
        export_onnx(other, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_text() == "what was there before"
    assert len(list(tmp_path.iterdir())) == 1


class Capricious(nn.Module):
    """Branches on its input, which no fixed graph can express."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)) if images.sum().item() > 0 else -images.mean((2, 3))


def test_network_that_cannot_be_exported_is_reported(model: PatternModel, tmp_path: Path) -> None:
    with pytest.raises(ClewError, match=r"cannot export the network in .* to ONNX \(.+\): try a"):
        export_onnx(replace(model, network=Capricious()), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_extra_is_reported_with_how_to_install_it(
    model: PatternModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=rf'{missing} cannot .* `pip install "clew\[onnx\]"`'):
        export_onnx(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_path_that_cannot_be_written_is_reported_before_the_work(
    model: PatternModel, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="is a folder: give the name of a file"):
        export_onnx(model, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be created"):
        export_onnx(model, tmp_path / "file" / "m.onnx")
