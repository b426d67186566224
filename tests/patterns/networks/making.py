"""Random weights where the pretrained ones of EfficientNet-Lite0 would be."""

from pathlib import Path

import torch

from clew.engine.model_files import write_model
from clew.patterns.networks import lite0
from clew.patterns.networks.lite0 import EfficientNetLite0
from clew.storage.wheels import models_folder


def write_random_lite0(cache: Path) -> EfficientNetLite0:
    torch.manual_seed(1)
    network = EfficientNetLite0(lite0.IMAGENET_CLASSES).eval()
    folder = models_folder(cache) / "EfficientNet-Lite0"
    folder.mkdir(parents=True)
    about = {"sha256": lite0._WHEEL.sha256}
    write_model(folder / "model.safetensors", network.state_dict(), about)
    return network
