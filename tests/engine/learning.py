"""Small training problems: two classes, networks for them, and batches of any kind."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from clew.engine import Classifier, FitResult, LoadSettings, PlanRequest, TrainConfig, fit

FEATURES = 6
PLAIN = PlanRequest(device="cpu", precision="fp32", compile=False, calibrate=False, num_workers=0)


class Samples(Dataset):
    """Points with a label that (almost) follows from them; also read as whole batches."""

    def __init__(self, count: int, seed: int = 0, classes: int = 2) -> None:
        random = np.random.default_rng(seed)
        self.x = random.standard_normal((count, FEATURES)).astype(np.float32)
        noisy = self.x[:, 0] + 0.5 * self.x[:, 1] + 0.3 * random.standard_normal(count)
        edges = {2: [0.0], 3: [-0.5, 0.5]}[classes]
        self.label = np.searchsorted(edges, noisy).astype(np.float32)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": self.x[i], "label": self.label[i], "index": i, "question_id": f"q{i}"}

    def read_batch(self, indices: Any, _buffers: Any) -> dict[str, Any]:
        return {
            "x": torch.from_numpy(self.x[indices]),
            "label": torch.from_numpy(self.label[indices]),
            "index": torch.from_numpy(np.ascontiguousarray(indices)),
            "question_id": [f"q{i}" for i in indices],
        }


class Points(nn.Module):
    """A small network with dropout, so that random numbers matter."""

    def __init__(self, outputs: int = 1, dropout: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, outputs)
        )

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.layers(batch["x"])


def open_loader(samples: Samples) -> Any:
    """The function that opens clew's own loader over these samples."""
    from clew.datasets import Loader

    def open_batches(settings: LoadSettings) -> Loader:
        return Loader(
            samples,
            settings.batch_size,
            shuffle=settings.shuffle,
            seed=settings.seed,
            num_workers=settings.num_workers,
            pin_memory=settings.pin_memory,
        )

    return open_batches


def torch_loader(samples: Samples, batch_size: int = 16, **options: Any) -> DataLoader:
    return DataLoader(samples, batch_size=batch_size, **options)


def new_model(outputs: int = 1, dropout: float = 0.1, seed: int = 7) -> Classifier:
    torch.manual_seed(seed)
    return Classifier(Points(outputs, dropout))


def train(folder: Path, *, model: Any = None, config: Any = None, **changes: Any) -> FitResult:
    """A run of 3 epochs over 200 samples, with the given changes."""
    options: dict[str, Any] = {
        "train": open_loader(Samples(200)),
        "validation": open_loader(Samples(80, seed=1)),
        "test": open_loader(Samples(80, seed=2)),
        "request": PlanRequest(**{**vars(PLAIN), "batch_size": 16}),
    }
    return fit(
        model or new_model(),
        config=config or TrainConfig(epochs=3, lr=1e-2),
        output_dir=folder,
        **options | changes,
    )
