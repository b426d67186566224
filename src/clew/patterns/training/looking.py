"""What a trained network returns for the photos of each split."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float32, Int64

from clew.base.cores import count_cores
from clew.base.cpu import map_on_cores
from clew.patterns.photo_map.layout import choose_shown
from clew.patterns.trained.model import Outputs, PatternModel
from clew.patterns.training.photos import TrainingPhotos, TrainingSamples

# Small batches stay in a core's cache: there they take half of the time of large ones.
_BATCH, _BATCH_ON_CPU = 128, 8
# Enough for means, a covariance and neighbors. Without a GPU, a minute for a small network.
_MOST_TRAINING, _MOST_TRAINING_ON_CPU, _MOST_HELD_OUT = 4_000, 2_000, 10_000


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The photos of one split: their indices among all photos, and the network's logits. Features
    are kept of some of them, those at `chosen`."""

    places: Int64[np.ndarray, " photos"]
    logits: Float32[np.ndarray, "photos classes"]
    chosen: Int64[np.ndarray, " some"]
    features: Float32[np.ndarray, "some features"]


def look_at(
    model: PatternModel, photos: TrainingPhotos, samples: TrainingSamples, split: str
) -> Seen:
    """Run the network on a split; on some photos only of the training split."""
    places = photos.places(split)
    if split == "train":
        model = replace(model, looks_closer=False)  # it would take time and change next to nothing
        on_cpu = model.device.type == "cpu"
        most = _MOST_TRAINING_ON_CPU if on_cpu else _MOST_TRAINING
        places = places[choose_shown(photos.labels[places], most)]
    kept = choose_shown(photos.labels[places], _MOST_HELD_OUT)
    wanted = np.zeros(len(places), bool)
    wanted[kept] = True
    inside = np.searchsorted(photos.places(split), places)
    logits, features, done = [], [], 0
    for found in _run(model, samples, split, inside):
        logits.append(found.logits)
        features.append(found.features[wanted[done : done + len(found.logits)]])
        done += len(found.logits)
    return Seen(
        places=places,
        logits=np.concatenate(logits),
        chosen=places[kept],
        features=np.concatenate(features),
    )


def _run(
    model: PatternModel, samples: TrainingSamples, split: str, places: Int64[np.ndarray, " photos"]
) -> Iterator[Outputs]:
    """The outputs of one batch after the other; on a CPU every core runs batches of its own."""
    on_cpu = model.device.type == "cpu"
    size = _BATCH_ON_CPU if on_cpu else _BATCH
    batches = [places[begin : begin + size] for begin in range(0, len(places), size)]

    def run(batch: Int64[np.ndarray, " photos"]) -> Outputs:
        return model.outputs(samples.read(split, batch))

    return map_on_cores(run, batches, count_cores()) if on_cpu else map(run, batches)
