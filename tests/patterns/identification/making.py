"""A real network that knows three colors, and photos of them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from clew.engine.model_files import write_model
from clew.patterns.networks import build_network
from clew.patterns.networks.classifier import PatternClassifier
from clew.patterns.trained.model import PatternModel
from clew.patterns.trained.unknown import calibrate, fit_space

SIZE = 32
COLORS = {"azul ñ": (30, 60, 220), "green": (40, 200, 60), "red": (220, 40, 30)}
_GREY = 120
_SURENESS = 8.0


def save_color_model(folder: Path) -> Path:
    """What a finished run leaves, as far as a model needs it. Only the last layer is fitted, by
    least squares: random filters see colors well enough."""
    torch.manual_seed(0)
    network = build_network("tiny", classes=len(COLORS), image_size=SIZE)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    _fit_last_layer(network)
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    settings = {"network": "tiny", "classes": list(COLORS), "image_size": SIZE}
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / "best.safetensors", tensors, {"settings": settings})
    (folder / "results.json").write_text(json.dumps({"temperature": 1.0}), encoding="utf-8")
    return folder


@torch.no_grad()
def _fit_last_layer(network: nn.Module) -> None:
    images, shares = _draw_batch()
    last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    seen: list[Tensor] = []
    watch = last.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    PatternClassifier(network, classes=len(COLORS)).eval()(images)
    watch.remove()
    features = torch.cat([seen[0], torch.ones(len(shares), 1)], dim=1).double()
    ridge = 1e-2 * torch.eye(features.shape[1], dtype=torch.float64) * features.square().mean()
    fitted = torch.linalg.solve(
        features.T @ features + ridge, features.T @ (_SURENESS * shares)
    ).float()
    last.weight.copy_(fitted[:-1].T)
    last.bias.copy_(fitted[-1])


def _draw_batch(count: int = 300) -> tuple[Tensor, Tensor]:
    """Squares that are mostly of a class's color, on gray; every fourth is only gray, and may be
    anything. With soft labels."""
    labels = torch.randint(len(COLORS), (count,))
    shares = F.one_hot(labels, len(COLORS)).double()
    images = torch.full((count, SIZE, SIZE, 3), _GREY) + torch.randint(-20, 20, (count, 1, 1, 3))
    colors = torch.tensor(list(COLORS.values()))
    for number, label in enumerate(labels.tolist()):
        left, top = torch.randint(0, 6, (2,)).tolist()
        if number % 4:
            images[number, top : SIZE - top, left : SIZE - left] = colors[label]
        else:
            shares[number] = 1 / len(COLORS)
    noise = torch.randint(-25, 25, images.shape)
    return (images + noise).clamp(0, 255).to(torch.uint8), shares


def with_unknown(model: PatternModel) -> PatternModel:
    """The model, which then knows that a photo of noise shows none of its colors."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 20)
    colors = np.array(list(COLORS.values()))[labels] + generator.integers(-25, 25, (60, 3))
    noise = generator.integers(-20, 20, (60, model.image_size, model.image_size, 3))
    images = (colors[:, None, None] + noise).clip(0, 255).astype(np.uint8)
    features = model.outputs(images).features
    space = fit_space(features[::2], labels[::2])
    return replace(model, unknown=calibrate(space, features[1::2]))


def draw_noise(path: Path) -> Path:
    """A photo of nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def draw_photo(path: Path, label: str, *, sides: tuple[int, int] = (60, 40), seed: int = 0) -> Path:
    """A photo full of a class's color; another seed, another shade."""
    path.parent.mkdir(parents=True, exist_ok=True)
    color = tuple(max(0, min(255, value + seed % 16 - 8)) for value in COLORS[label])
    Image.new("RGB", sides, color).save(path)
    return path


def draw_small(path: Path, label: str, *, box: tuple[int, int, int, int]) -> Path:
    """A large gray photo with the color only in `box`."""
    image = Image.new("RGB", (400, 300), (_GREY,) * 3)
    image.paste(COLORS[label], box)
    image.save(path)
    return path


def draw_doubtful(path: Path, labels: Sequence[str] = ("green", "red")) -> Path:
    """Half of one color, half of another."""
    image = Image.new("RGB", (40, 40), COLORS[labels[0]])
    image.paste(COLORS[labels[1]], (0, 20, 40, 40))
    image.save(path)
    return path


def make_folder(root: Path) -> Path:
    """Three of each color in folders with odd names, and three files that are not photos."""
    for number, label in enumerate(COLORS):
        for place in range(3):
            name = root / f"día {place} ✋" / f"foto {number} <b>&amp;.png"
            draw_photo(name, label, seed=10 * number + place)
    (root / "empty.jpg").write_bytes(b"")
    (root / "text.png").write_text("no picture", encoding="utf-8")
    draw_photo(root / "whole.jpg", "red", sides=(300, 300))
    (root / "cut.jpg").write_bytes((root / "whole.jpg").read_bytes()[:700])
    return root
