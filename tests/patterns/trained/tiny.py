"""A folder with a photo classifier, as small as it can be, without training it."""

import json
from pathlib import Path

import torch

from clew.engine.model_files import write_model
from clew.patterns.networks import build_network

RESULTS = {"temperature": 1.5, "classes": ["a", "b"], "test_accuracy": 0.5}


def write_classifier(folder: Path) -> Path:
    torch.manual_seed(0)
    network = build_network("tiny", classes=2, image_size=16)
    weights = {f"network.{name}": value for name, value in network.state_dict().items()}
    settings = {"network": "tiny", "classes": ["a", "b"], "image_size": 16}
    best = {"epoch": 1, "metrics": {"accuracy": 0.5}, "threshold": None}
    write_model(folder / "best.safetensors", weights, {"settings": settings, "best": best})
    (folder / "results.json").write_text(json.dumps(RESULTS))
    return folder
