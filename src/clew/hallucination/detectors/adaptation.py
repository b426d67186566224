"""Adaptation of a detector to other answers with few labels, on one vector per answer: the score
of the detector's method, statistics of the token probabilities, and states of middle layers."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32

from clew.hallucination.detectors.probes.fitting import Array, library, to_numpy
from clew.hallucination.detectors.probes.fusion import CONFIDENCE, read_confidence
from clew.hallucination.detectors.probes.robust import unit

if TYPE_CHECKING:
    from clew.hallucination.detectors.data import LiveData

_STATES = ("sequence", "state_mean")  # of the last answer token, and the mean of all
VECTOR_FIELDS = frozenset((*_STATES, *CONFIDENCE))
# States in a vector: of larger models, evenly spaced dimensions.
_MOST_STATES = 1 << 14
Vectors = Float32[np.ndarray, "answers numbers"]


def build_vectors(scores: Float32[np.ndarray, " answers"], data: "LiveData", split: str) -> Vectors:
    """Everything that adaptation needs of each answer, `scores` being those of the detector's
    method. They are not calibrated, so that vectors stay valid when the detector is calibrated or
    adapted."""
    layers = range(data.layers // 4, 3 * data.layers // 4 + 1, 2)
    parts = [
        _thin(unit(data.read(field, split, layer=layer)), len(layers) * len(_STATES))
        for field in _STATES
        for layer in layers
    ]
    states = to_numpy(library(parts[0]).concatenate(parts, axis=1))
    columns = (scores[:, None], read_confidence(data, split), states)
    return np.concatenate(columns, axis=1).astype(np.float32)


def _thin(states: Array, parts: int) -> Array:
    step = -(-states.shape[1] * parts // _MOST_STATES)
    return states[:, ::step]
