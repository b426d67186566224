"""The torch.export program gives the model's predictions, and says what it is."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clew.patterns.networks import build_network
from clew.patterns.trained.export import describe_model, export_program
from clew.patterns.trained.model import load_classifier
from clew.patterns.workflow import export
from tests.patterns.identification.making import COLORS, SIZE, save_color_model


@pytest.mark.slow
def test_a_program_gives_the_same_probabilities(tmp_path: Path) -> None:
    folder = save_color_model(tmp_path / "colors")
    made = export(model=folder, out=tmp_path / "a.pt2")
    about = {"classes": "", "scaling": "", "calibration": "", "input": ""}
    loaded = torch.export.load(made.path, extra_files=about).module()
    images = np.random.default_rng(0).integers(0, 256, (3, SIZE, SIZE, 3), dtype=np.uint8)
    expected = load_classifier(folder, "cpu").probabilities(images)
    with torch.no_grad():
        found = loaded(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert json.loads(about["classes"]) == list(COLORS)
    assert json.loads(about["input"])["shape"] == ["batch", SIZE, SIZE, 3]


@pytest.mark.slow
def test_a_program_looks_closer_as_the_model_does(tmp_path: Path) -> None:
    model = load_classifier(save_color_model(tmp_path / "colors"), "cpu")
    made = export_program(replace(model, looks_closer=True), tmp_path / "closer.pt2")
    assert made.difference < 1e-5


def test_the_description_says_how_a_network_scales_its_input(tmp_path: Path) -> None:
    model = load_classifier(save_color_model(tmp_path / "colors"), "cpu")
    network = build_network("lite0", classes=3, image_size=SIZE)
    found = [describe_model(replace(model, network=one)) for one in (model.network, network)]
    means = [json.loads(about["scaling"])["mean"] for about in found]
    assert means == [[0.485, 0.456, 0.406], [0.5, 0.5, 0.5]]
