"""A real network that knows three colours, and photos of them."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from clew.engine.model_files import write_model
from clew.patterns.classifier import PatternClassifier
from clew.patterns.networks import build_network

SIZE = 32
COLOURS = {"azul ñ": (30, 60, 220), "green": (40, 200, 60), "red": (220, 40, 30)}
_GREY = 120
_SURENESS = 8.0


def save_colour_model(folder: Path) -> Path:
    """What a finished training leaves, as far as a model needs it. Only the last layer is fitted,
    at once, by least squares: drawn filters see colours well enough."""
    torch.manual_seed(0)
    network = build_network("tiny", classes=len(COLOURS), image_size=SIZE)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    _fit_last_layer(network)
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    settings = {"network": "tiny", "classes": list(COLOURS), "image_size": SIZE}
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
    PatternClassifier(network, classes=len(COLOURS)).eval()(images)
    watch.remove()
    features = torch.cat([seen[0], torch.ones(len(shares), 1)], dim=1).double()
    ridge = 1e-2 * torch.eye(features.shape[1], dtype=torch.float64) * features.square().mean()
    fitted = torch.linalg.solve(
        features.T @ features + ridge, features.T @ (_SURENESS * shares)
    ).float()
    last.weight.copy_(fitted[:-1].T)
    last.bias.copy_(fitted[-1])


def _draw_batch(count: int = 300) -> tuple[Tensor, Tensor]:
    """Squares that are mostly of a class's colour, on grey; every fourth is only grey, and may be
    anything. With the classes as shares."""
    labels = torch.randint(len(COLOURS), (count,))
    shares = F.one_hot(labels, len(COLOURS)).double()
    images = torch.full((count, SIZE, SIZE, 3), _GREY) + torch.randint(-20, 20, (count, 1, 1, 3))
    colours = torch.tensor(list(COLOURS.values()))
    for number, label in enumerate(labels.tolist()):
        left, top = torch.randint(0, 6, (2,)).tolist()
        if number % 4:
            images[number, top : SIZE - top, left : SIZE - left] = colours[label]
        else:
            shares[number] = 1 / len(COLOURS)
    noise = torch.randint(-25, 25, images.shape)
    return (images + noise).clamp(0, 255).to(torch.uint8), shares


def draw_photo(path: Path, label: str, *, sides: tuple[int, int] = (60, 40), seed: int = 0) -> Path:
    """A photo full of a class's colour; another seed, another shade."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = tuple(max(0, min(255, value + seed % 16 - 8)) for value in COLOURS[label])
    Image.new("RGB", sides, colour).save(path)
    return path


def draw_small(path: Path, label: str, *, box: tuple[int, int, int, int]) -> Path:
    """A large grey photo with the colour in `box` only."""
    image = Image.new("RGB", (400, 300), (_GREY,) * 3)
    image.paste(COLOURS[label], box)
    image.save(path)
    return path


def draw_doubtful(path: Path, labels: Sequence[str] = ("green", "red")) -> Path:
    """Half of one colour, half of another."""
    image = Image.new("RGB", (40, 40), COLOURS[labels[0]])
    image.paste(COLOURS[labels[1]], (0, 20, 40, 40))
    image.save(path)
    return path


def make_folder(root: Path) -> Path:
    """Three of each colour in folders of ugly names, and three files that are no photos."""
    for number, label in enumerate(COLOURS):
        for place in range(3):
            name = root / f"día {place} ✋" / f"foto {number} <b>&amp;.png"
            draw_photo(name, label, seed=10 * number + place)
    (root / "empty.jpg").write_bytes(b"")
    (root / "text.png").write_text("no picture", encoding="utf-8")
    draw_photo(root / "whole.jpg", "red", sides=(300, 300))
    (root / "cut.jpg").write_bytes((root / "whole.jpg").read_bytes()[:700])
    return root
