"""Machines, networks and batches for tests of the hardware plan."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from clew.engine import Classifier, LoadSettings
from clew.engine.plan import Gpu, Machine

LONG_RUN = 10**7  # epochs
NEW_GPU = Gpu(name="New GPU", memory_bytes=80 * 10**9, free_bytes=79 * 10**9, capability=(9, 0))
OLD_GPU = Gpu(name="Old GPU", memory_bytes=16 * 10**9, free_bytes=15 * 10**9, capability=(7, 5))


def machine(**changes: Any) -> Machine:
    """Two cores with bf16 and a compiler, no GPU, with the given changes."""
    settings: dict[str, Any] = {
        "cores": 2,
        "free_memory_bytes": 8 * 10**9,
        "bf16_instructions": "AMX",
        "gpus": (),
        "cannot_compile": "",
    }
    return Machine(**settings | changes)


class Network(nn.Module):
    """Records the dtypes it computed in, and fails on request."""

    def __init__(self, *, fails_mixed: Exception | None = None, max_batch: int = 10**9) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(8, 16), nn.Linear(16, 1)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.2)
        self._fails_mixed, self._max_batch = fails_mixed, max_batch

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        if self._fails_mixed is not None and torch.is_autocast_enabled("cpu"):
            raise self._fails_mixed
        if len(batch["x"]) > self._max_batch:
            raise torch.OutOfMemoryError("out of memory")
        return self.out(self.drop(self.norm(self.layer(batch["x"])).relu()))[:, 0]


class Pictures(nn.Module):
    """A network with 2-D convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.out = nn.Linear(4, 1)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.out(self.layers(batch["x"]).flatten(1))[:, 0]


def classifier(network: nn.Module | None = None, seed: int = 3) -> Classifier:
    torch.manual_seed(seed)
    return Classifier(network or Network())


@dataclass
class Opener:
    """Opens batches of random numbers, and records what it was asked for."""

    samples: int = 400
    shape: tuple[int, ...] = (8,)
    asked: list[LoadSettings] = field(default_factory=list)

    def __call__(self, settings: LoadSettings) -> "SomeBatches":
        self.asked.append(settings)
        return SomeBatches(self.samples, self.shape, settings.batch_size)


@dataclass
class SomeBatches:
    """A ready-made loader; `place` is its position in the epoch."""

    samples: int = 400
    shape: tuple[int, ...] = (8,)
    batch_size: int = 20
    place: int = 0

    def __len__(self) -> int:
        return -(-self.samples // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        numbers = torch.Generator().manual_seed(0)
        for first in range(0, self.samples, self.batch_size):
            count = min(self.batch_size, self.samples - first)
            self.place += count
            x = torch.randn(count, *self.shape, generator=numbers)
            yield {"x": x, "label": (x.flatten(1)[:, 0] > 0).float()}

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]
