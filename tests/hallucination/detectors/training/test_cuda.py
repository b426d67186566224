"""Detectors on a GPU."""

from pathlib import Path

import pytest
import torch

from clew.engine import PlanRequest, TrainConfig
from clew.hallucination.detectors.detector_folder import load_detector
from clew.hallucination.detectors.registry import NETWORKS
from clew.hallucination.detectors.training.train import train_detectors
from tests.hallucination.detectors.training.making import small_run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("cache", [None, 2], ids=["on the GPU", "from the files"])
def test_all_networks_learn(learnable: Path, tmp_path: Path, cache: int | None) -> None:
    request = PlanRequest(device="cuda", batch_size=16, max_cache_batches=cache)
    options = {"networks": tuple(NETWORKS), "train": TrainConfig(epochs=12, lr=0.003)}
    for run in train_detectors(small_run(learnable, tmp_path, request=request, **options)):
        assert run["plan"]["device"] == "cuda"
        # One in seven of the samples has no answer, and CHARM then nothing to read.
        assert run["test_auroc"] > (0.75 if run["model"] == "charm" else 0.9), run["model"]
        assert load_detector(tmp_path / run["model"], "cuda").threshold == run["threshold"]
