"""Samples that can be learned, and small runs on them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.engine import PlanRequest, TrainConfig
from clew.hallucination.detectors.networks.act_vit import ActViTConfig
from clew.hallucination.detectors.registry import NETWORKS, NetworkSettings
from clew.hallucination.detectors.training.settings import TrainRunConfig
from tests import samples

SMALL = NetworkSettings(lstm_hidden=8, num_lstm_layers=1)
PLAIN = PlanRequest(device="cpu", calibrate=False, batch_size=16, num_workers=0)


@samples.made_once
def write_learnable(folder: Path, **sizes: Any) -> Path:
    """Samples that almost always reveal whether the answer is hallucinated."""
    plain, plain_graph = samples.sequence_of, samples.graph_of

    def telling(number: int, layers: int, dim: int) -> np.ndarray:
        values = plain(number, layers, dim)
        values[:, : dim // 2] += 1.5 * samples.label(number)
        return values

    def telling_graph(number: int, *of: int) -> dict[str, np.ndarray]:
        graph = plain_graph(number, *of)
        graph["nodes"][:, 0] += 4 * samples.label(number)
        return graph

    options = {"shards": 3, "rows": 80, "heads": True, "signal": 0.5, **sizes}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "sequence_of", telling)
        patch.setattr(samples, "graph_of", telling_graph)
        return samples.write_samples(folder, **options)


def small_run(data: Path, out: Path, **changes: Any) -> TrainRunConfig:
    """A few epochs of small networks."""
    options: dict[str, Any] = {
        "preprocessed_dir": data,
        "network": SMALL,
        "train": TrainConfig(epochs=4, lr=0.01),
        "request": PLAIN,
    }
    return TrainRunConfig(out=out, **options | changes)


@dataclass(frozen=True, kw_only=True)
class SmallActViTConfig(ActViTConfig):
    width: int = 32
    encoder_layers: int = 2
    heads: int = 4


@contextmanager
def small_act_vit() -> Iterator[None]:
    """ACT-ViT has no setting for its size; a run within it trains a small one."""
    small = replace(NETWORKS["act_vit"])
    vars(small)["config"] = SmallActViTConfig  # in place of the class that would be imported
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(NETWORKS, "act_vit", small)
        yield
