"""What a trained network returns for the photos of each split."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64

from clew.patterns.photo_map.layout import choose_shown
from clew.patterns.trained.model import PatternModel
from clew.patterns.training.photos import TrainingPhotos, TrainingSamples

_BATCH = 128
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
        on_cpu = model.device.type == "cpu"
        most = _MOST_TRAINING_ON_CPU if on_cpu else _MOST_TRAINING
        places = places[choose_shown(photos.labels[places], most)]
    kept = choose_shown(photos.labels[places], _MOST_HELD_OUT)
    wanted = np.zeros(len(places), bool)
    wanted[kept] = True
    inside = np.searchsorted(photos.places(split), places)
    logits, features = [], []
    for begin in range(0, len(places), _BATCH):
        some = slice(begin, begin + _BATCH)
        found = model.outputs(samples.read(split, inside[some]))
        logits.append(found.logits)
        features.append(found.features[wanted[some]])
    return Seen(
        places=places,
        logits=np.concatenate(logits),
        chosen=places[kept],
        features=np.concatenate(features),
    )
