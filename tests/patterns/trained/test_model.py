"""A trained model, loaded for use."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from clew.base.errors import InputError, StoreError
from clew.engine.folders import BEST
from clew.patterns.photos import read_square
from clew.patterns.trained.model import load_classifier
from tests.patterns.training.making import COLORS

pytestmark = pytest.mark.slow


def test_loaded_model_repeats_the_saved_predictions(trained: Path, photos: Path) -> None:
    """The rows of predictions.csv, to the last written digit."""
    model = load_classifier(trained, "cpu")
    assert model.classes == tuple(COLORS) and model.image_size == 16
    rows = (trained / "predictions.csv").read_text(encoding="utf-8").splitlines()[1:]
    for row in rows:
        name, _, predicted, probability, second, _ = row.split(",")
        [found] = model.probabilities(read_square(photos / name, 16)[None])
        order = np.argsort(-found)
        assert [model.classes[place] for place in order[:2]] == [predicted, second]
        assert float(probability) == pytest.approx(found.max(), abs=1e-5)


def test_probabilities_sum_to_one_for_arrays_and_tensors(trained: Path) -> None:
    model = load_classifier(trained, "cpu")
    images = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    found = model.probabilities(images)
    assert found.shape == (5, 3) and found.dtype == np.float32
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)
    np.testing.assert_array_equal(found, model.probabilities(torch.from_numpy(images)))


@pytest.mark.parametrize("shape", [(1, 20, 20, 3), (2000, 3, 16, 16), (16, 16, 3), ()])
def test_images_of_the_wrong_shape_are_refused(trained: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="pass uint8 images of shape .batch, 16, 16, 3.") as error:
        load_classifier(trained, "cpu").probabilities(np.zeros(shape, np.uint8))
    assert str(shape) in str(error.value)


def test_folder_without_a_model_is_reported(trained: Path, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match='there is no folder ".*nowhere"'):
        load_classifier(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="contains no trained model"):
        load_classifier(photos)
    shutil.copy(trained / BEST, tmp_path)
    with pytest.raises(StoreError, match="is not finished: run its .* command again"):
        load_classifier(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"temperature": -1}', '{"temperature": "a"}'])
def test_damaged_results_are_named(trained: Path, tmp_path: Path, content: str) -> None:
    shutil.copy(trained / BEST, tmp_path)
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(StoreError, match=r"results.json\" cannot be read .*delete it"):
        load_classifier(tmp_path)


def test_model_of_earlier_version_can_be_loaded(tmp_path: Path) -> None:
    """Commit 8b887bb wrote it, with weights of few values so that it packs well."""
    before = Path(__file__).parents[2] / "data" / "8b887bb" / "patterns"
    shutil.copy(before / "results.json", tmp_path)
    (tmp_path / BEST).write_bytes(gzip.decompress((before / f"{BEST}.gz").read_bytes()))
    model = load_classifier(tmp_path, "cpu")
    assert (model.classes, model.image_size) == (("blue", "red"), 32)
    assert model.temperature == pytest.approx(10)
    logits = model.logits(np.full((1, 32, 32, 3), 40, np.uint8))
    assert logits[0].tolist() == pytest.approx([0.0416056, 0.0482722], abs=1e-5)


def test_damaged_weights_are_named(trained: Path, tmp_path: Path) -> None:
    shutil.copy(trained / "results.json", tmp_path)
    with pytest.raises(StoreError, match="best.safetensors"):
        load_classifier(tmp_path)
    (tmp_path / BEST).write_bytes((trained / BEST).read_bytes()[:-1000])
    with pytest.raises(StoreError, match=r"best.safetensors\" cannot be read"):
        load_classifier(tmp_path)


def test_weights_of_something_else_are_refused(trained: Path, tmp_path: Path) -> None:
    from clew.engine.model_files import read_model, write_model

    shutil.copy(trained / "results.json", tmp_path)
    saved = read_model(trained / BEST)
    tensors, about = saved.read(saved.kinds), saved.about
    write_model(tmp_path / BEST, tensors, {**about, "settings": {"network": "lstm"}})
    with pytest.raises(StoreError, match="is not an image classifier"):
        load_classifier(tmp_path)
    wider = json.loads(json.dumps(about["settings"])) | {"network": "small"}
    write_model(tmp_path / BEST, tensors, {**about, "settings": wider})
    with pytest.raises(StoreError, match='do not match the network "small"'):
        load_classifier(tmp_path)


def test_unavailable_device_is_refused(trained: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(InputError, match="cuda"):
        load_classifier(trained, "cuda")
