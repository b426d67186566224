"""The map of a run's photos: some of every class and split, and every mistake."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from clew.patterns.photo_map.block import MOST_THUMBNAILS, draw_sheet
from clew.patterns.photo_map.layout import choose_shown, lay_out
from clew.patterns.photos import SPLITS
from clew.patterns.trained.map_files import MapRow, write_map
from clew.patterns.training.looking import Seen
from clew.patterns.training.photos import TrainingPhotos, TrainingSamples

MOST_ON_MAP = 6_000


def draw_photo_map(
    folder: Path, photos: TrainingPhotos, samples: TrainingSamples, seen: Mapping[str, Seen]
) -> None:
    """Write map.csv and map.jpg."""
    places = np.concatenate([one.chosen for one in seen.values()])
    features = np.concatenate([one.features for one in seen.values()])
    predicted = np.concatenate([_predict(one) for one in seen.values()])
    is_wrong = predicted != photos.labels[places]
    shown = choose_shown(
        photos.labels[places], MOST_ON_MAP, first=np.flatnonzero(is_wrong).tolist()
    )
    # The first ones have thumbnails: the mistakes, then some of everything.
    order = np.random.default_rng(0).permutation(shown)
    order = order[np.argsort(~is_wrong[order], kind="stable")]
    positions = lay_out(features[order], first=is_wrong[order])
    rows = [
        _row(photos, int(places[place]), int(predicted[place]), position)
        for place, position in zip(order, positions.tolist(), strict=True)
    ]
    write_map(folder, rows, _draw_thumbnails(photos, samples, places[order[:MOST_THUMBNAILS]]))


def _predict(seen: Seen) -> np.ndarray:
    inside = np.searchsorted(seen.places, seen.chosen)
    return seen.logits[inside].argmax(1)


def _row(photos: TrainingPhotos, place: int, predicted: int, position: list[float]) -> MapRow:
    return MapRow(
        name=photos.cached.photos[place].name,
        label=photos.classes[photos.labels[place]],
        split=SPLITS[photos.splits[place]],
        predicted=photos.classes[predicted],
        x=position[0],
        y=position[1],
    )


def _draw_thumbnails(photos: TrainingPhotos, samples: TrainingSamples, places: np.ndarray) -> bytes:
    images = (_read_image(photos, samples, int(place)) for place in places)
    return draw_sheet(images, len(places))


def _read_image(photos: TrainingPhotos, samples: TrainingSamples, place: int) -> np.ndarray:
    split = SPLITS[photos.splits[place]]
    inside = np.searchsorted(photos.places(split), [place])
    return samples.read(split, inside)[0].cpu().numpy()
