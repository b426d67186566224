"""Labels that are probably wrong, and classes that overlap: confident learning on predictions in
which no photo had a say about itself."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64

# A label is suspect if another class is more likely and the label's own probability is below this,
# and what labels that are wrong by chance give every class. Measured with 5% and 20% of the labels
# swapped: benchmarks/patterns_clean.py.
_SUSPECT_BELOW = 0.065
# With fewer photos, a class says too little about one of its own.
FEWEST_PHOTOS = 4
# Two classes overlap if this share of the smaller one, and this many photos, look like the other.
_OVERLAP_SHARE, _OVERLAP_PHOTOS = 0.05, 3


@dataclass(frozen=True, kw_only=True)
class LabelSuspect:
    """The photo at `place` is probably of class `suggested`. `confidence` is the probability of its
    label, `other` that of the suggested class."""

    place: int
    suggested: int
    confidence: float
    other: float


@dataclass(frozen=True, kw_only=True)
class ClassOverlap:
    """Two classes that look alike. `share` of their photos resemble the other class more than their
    own; `places` are these photos."""

    first: int
    second: int
    share: float
    places: tuple[int, ...]


def find_suspects(
    chances: Float[np.ndarray, "photos classes"], labels: Int64[np.ndarray, " photos"]
) -> list[LabelSuspect]:
    """Photos whose label is probably wrong, the least likely label first."""
    own = chances[np.arange(len(labels)), labels]
    guesses = chances.argmax(1)
    counts = np.bincount(labels, minlength=chances.shape[1])
    is_suspect = (guesses != labels) & (own < _limit(chances, labels))
    is_suspect &= counts[labels] >= FEWEST_PHOTOS
    places = np.flatnonzero(is_suspect)
    return [
        LabelSuspect(
            place=int(place),
            suggested=int(guesses[place]),
            confidence=float(own[place]),
            other=float(chances[place, guesses[place]]),
        )
        for place in places[np.argsort(own[places], kind="stable")]
    ]


def find_overlaps(
    chances: Float[np.ndarray, "photos classes"], labels: Int64[np.ndarray, " photos"]
) -> list[ClassOverlap]:
    """Pairs of classes that are often mistaken for each other, the worst first. Photos with a
    suspect label do not count: they are wrong, not alike."""
    own = chances[np.arange(len(labels)), labels]
    guesses = np.where(own < _limit(chances, labels), labels, chances.argmax(1))
    classes = chances.shape[1]
    counts = np.bincount(labels, minlength=classes)
    found = []
    for first in range(classes):
        for second in range(first + 1, classes):
            mixed = ((labels == first) & (guesses == second)) | (
                (labels == second) & (guesses == first)
            )
            places = np.flatnonzero(mixed)
            share = len(places) / max(1, counts[first] + counts[second])
            if len(places) >= _OVERLAP_PHOTOS and share >= _OVERLAP_SHARE:
                order = places[np.argsort(own[places], kind="stable")]
                found.append(
                    ClassOverlap(
                        first=first, second=second, share=share, places=tuple(order.tolist())
                    )
                )
    return sorted(found, key=lambda overlap: -overlap.share)


def _limit(
    chances: Float[np.ndarray, "photos classes"], labels: Int64[np.ndarray, " photos"]
) -> float:
    """The probability below which a label is suspect."""
    disagreement = float(np.mean(chances.argmax(1) != labels))
    return _SUSPECT_BELOW + disagreement / max(1, chances.shape[1] - 1)
