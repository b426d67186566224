"""What trained networks score: every sample of a split, in the order of the data set."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from clew.engine import plan_hardware
from clew.engine.batches import move
from clew.errors import InputError, StoreError
from clew.hallucination.detectors.detector import Detector, load_detector
from clew.hallucination.detectors.registry import NETWORKS
from clew.hallucination.detectors.training.samples import read_sizes
from clew.hallucination.detectors.training.sources import DataSource
from clew.loading.loader import Loader
from clew.loading.order import Rank

_BATCH = 64

Scores = Float32[np.ndarray, " samples"]


def score_samples(
    detector_folder: Path, source: DataSource, split: str, *, device: str | None = None
) -> Scores:
    """The probability that each answer of a split is made up, as a trained network sees it: also
    one that was trained on other questions.

    Raises InputError for samples that the network cannot read, such as those of another model.
    """
    detector = load_detector(detector_folder, device or plan_hardware().device)
    kind = NETWORKS[detector.name]
    source.refuse_missing([kind])
    dataset = source.open(kind.samples, split)
    if not len(dataset):
        return np.zeros(0, np.float32)
    _refuse_other_sizes(detector, read_sizes(dataset), source.name)
    return score_batches(detector, Loader(dataset, _BATCH, rank=Rank()))


def score_batches(detector: Detector, batches: Iterable[Any]) -> Scores:
    """Probabilities in the order of the batches; raises StoreError when some are no numbers."""
    device = next(detector.network.parameters()).device
    parts = [detector.score(move(batch, device)) for batch in batches]
    scores = torch.cat(parts).cpu().numpy()
    wrong = int((~np.isfinite(scores)).sum())
    if wrong:
        raise StoreError(
            f"{detector.name} gives {wrong:,} of {len(scores):,} samples a score that is no "
            f"number: their values may hold inf or NaN. Make the samples again."
        )
    return scores


def _refuse_other_sizes(detector: Detector, sizes: dict[str, int], name: str) -> None:
    trained = {size: getattr(detector.config, size, found) for size, found in sizes.items()}
    different = [size for size, found in sizes.items() if trained[size] != found]
    if different:
        size = different[0]
        raise InputError(
            f"{detector.name} was trained on samples with {size} {trained[size]}, those of "
            f'"{name}" have {sizes[size]}: they are of another model, or made with other settings.'
        )
