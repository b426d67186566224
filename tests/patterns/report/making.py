"""A finished training as `clew patterns train` writes it: real photos, a real network with random
weights, and simulated predictions; nothing is trained."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

from clew.engine.model_files import write_model
from clew.patterns.networks import build_network

SIZE = 32
REASON = "the image is truncated or damaged (image file is truncated)"


def make_run(
    folder: Path,
    *,
    classes: Sequence[str] = ("cat", "dog", "2", "10"),
    test: int = 6,
    wrong: int = 5,
    excluded: int = 2,
    epochs: int = 8,
) -> Path:
    """OUT, with the photos in the folder "photos" beside it. `test` are test photos per class; of
    all of them `wrong` are predicted as the next class."""
    photos = folder.parent / "photos"
    answers = _draw_answers(photos, classes, test, wrong)
    folder.mkdir(parents=True)
    save_model(folder, classes)
    _write_table(folder / "predictions.csv", answers)
    faults = [
        {"name": f"{classes[0]}/broken {n}.jpg", "class": classes[0], "kind": "cut"}
        for n in range(excluded)
    ]
    _write_table(folder / "excluded.csv", [{**fault, "reason": REASON} for fault in faults])
    _write_table(folder / "splits.csv", [_split_row(answer) for answer in answers])
    _write_table(folder / "log.csv", [_log_row(epoch) for epoch in range(1, epochs + 1)])
    write_results(folder, _results(photos, classes, answers, excluded))
    return folder


def write_results(folder: Path, results: dict[str, Any]) -> None:
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


def change_results(folder: Path, **parts: Any) -> None:
    path = folder / "results.json"
    write_results(folder, json.loads(path.read_text(encoding="utf-8")) | parts)


def save_model(folder: Path, classes: Sequence[str], *, size: int = SIZE) -> None:
    """A tiny network whose predictions differ from photo to photo, like those of a trained one."""
    network = build_network("tiny", classes=len(classes), image_size=size)
    random = np.random.default_rng(0)  # PyTorch draws other numbers on other kinds of CPU
    last = _last_linear(network)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            _fill(module.weight, random.uniform(0.5, 1.5, module.weight.shape))
            _fill(module.running_mean, random.normal(0, 0.2, module.weight.shape))
        elif isinstance(module, nn.Conv2d | nn.Linear):
            inputs = module.weight[0].numel()
            gain = 10 if module is last else 2  # large in the end: photos are told apart
            _fill(module.weight, random.normal(0, (gain / inputs) ** 0.5, module.weight.shape))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    settings = {"network": "tiny", "classes": list(classes), "image_size": size}
    write_model(folder / "best.safetensors", tensors, {"settings": settings})


def _fill(tensor: Any, values: np.ndarray) -> None:
    with torch.no_grad():
        tensor.copy_(torch.from_numpy(values))


def _last_linear(network: nn.Module) -> nn.Linear:
    return [module for module in network.modules() if isinstance(module, nn.Linear)][-1]


def draw_photo(path: Path, kind: int, number: int, *, sides: tuple[int, int] = (72, 48)) -> None:
    """A disc or a box in the color of the class, somewhere on a noisy background."""
    random = np.random.default_rng([kind, number])
    ground = random.integers(90, 170, (sides[1], sides[0], 3), dtype=np.uint8)
    image = Image.fromarray(ground)
    x, y = int(random.integers(4, sides[0] // 2)), int(random.integers(4, sides[1] // 2))
    color = f"hsl({137 * kind % 360}, 80%, 50%)"
    draw = ImageDraw.Draw(image)
    shape = draw.ellipse if kind % 2 else draw.rectangle
    shape((x, y, x + sides[0] // 3, y + sides[1] // 3), fill=color)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def _draw_answers(
    photos: Path, classes: Sequence[str], test: int, wrong: int
) -> list[dict[str, Any]]:
    answers = []
    for place in range(len(classes) * test):
        kind, number = place % len(classes), place // len(classes)
        name = f"{classes[kind]}/ñandú {number} 🙂.png"
        draw_photo(photos / name, kind, number)
        other = classes[(kind + 1) % len(classes)]
        said, second = (other, classes[kind]) if place < wrong else (classes[kind], other)
        sure = 0.98 - 0.5 * number / test
        answers.append(
            {
                "name": name,
                "class": classes[kind],
                "predicted": said,
                "probability": sure,
                "second": second,
                "second_probability": (1 - sure) / 2,
            }
        )
    return answers


def _split_row(answer: dict[str, Any]) -> dict[str, str]:
    return {"name": answer["name"], "class": answer["class"], "split": "test", "digest": ""}


def _log_row(epoch: int) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "step": 10 * epoch,
        "lr": 0.001 * np.sin(epoch),
        "train_loss": 2 / epoch + 0.6,
        "val_loss": 2 / epoch + 0.2,
        "val_accuracy": 1 - 0.6 / epoch,
        "samples_per_second": 800.0,
    }


def _results(
    photos: Path, classes: Sequence[str], answers: list[dict[str, Any]], excluded: int
) -> dict[str, Any]:
    confusion = np.zeros((len(classes), len(classes)), dtype=int)
    for answer in answers:
        confusion[classes.index(answer["class"]), classes.index(answer["predicted"])] += 1
    right = confusion.diagonal()
    recall, precision = right / confusion.sum(1), right / np.maximum(confusion.sum(0), 1)
    accuracy = float(right.sum() / len(answers))
    return {
        "test_accuracy": accuracy,
        "test_accuracy_ci": [max(0.0, accuracy - 0.1), min(1.0, accuracy + 0.05)],
        "test_macro_f1": accuracy,
        "test_loss": 0.4,
        "test_ece": 0.031,
        "test_photos": len(answers),
        "val_accuracy": 0.93,
        "best_epoch": 6,
        "epochs_run": 8,
        "seconds": 61.2,
        "images_per_second": 812.0,
        "data_wait_share": 0.012,
        "peak_memory_bytes": 1_200_000_000,
        "parameters": 2_795_000,
        "classes": list(classes),
        "per_class": [
            {
                "class": name,
                "precision": float(precision[place]),
                "recall": float(recall[place]),
                "f1": float((precision[place] + recall[place]) / 2),
                "train": 40 + place,
                "validation": 6,
                "test": int(confusion[place].sum()),
            }
            for place, name in enumerate(classes)
        ],
        "confusion": confusion.tolist(),
        "temperature": 1.3,
        "image_size": SIZE,
        "network": "tiny",
        "augment": {"mixup": 0.2, "flip": False},
        "loss": {"label_smoothing": 0.1},
        "train": {"epochs": 8, "lr": 0.001},
        "plan": {
            "device": "cpu",
            "batch_size": 16,
            "reasons": {"device": "no GPU was found", "batch_size": "asked for: `batch_size`"},
        },
        "data": {
            "folder": str(photos),
            "photos": 52 * len(classes),
            "excluded": {"cut": excluded} if excluded else {},
            "splits": {"train": 40 * len(classes), "validation": 6 * len(classes)},
        },
        "started_from": None,
        "seed": 0,
        "versions": {"clew": "0.0", "torch": torch.__version__},
    }


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["name", "class"])
        writer.writeheader()
        writer.writerows(rows)
