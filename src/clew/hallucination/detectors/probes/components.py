"""Principal components from the products of answers with each other: however many features there
are, no more than that is in memory.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int
from scipy.linalg import eigh
from scipy.linalg.blas import ssyrk
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import threadpool_limits

from clew.hallucination.detectors.probes.logistic import Matrix

COMPONENTS = 512
# The products of 8,192 answers take 270 MB; components hardly change with more answers.
_MOST_ANSWERS = 8192
# So few are taken apart exactly; more by iterating, as scikit-learn's PCA does.
_EXACT = 2048
_ITERATIONS = 2
# Of the largest variance: what is smaller is rounding.
_SMALLEST = 1e-6


@dataclass(frozen=True, kw_only=True)
class Components:
    """`values`: the coordinates of the answers. `shares`: what each answer adds to a component,
    so that a feature's weight in it is its values over the answers times the shares."""

    values: Float32[np.ndarray, "answers components"]
    shares: Float32[np.ndarray, "answers components"]


def draw_answers(count: int) -> Int[np.ndarray, " some"]:
    """The training answers that components are made of: all, or a fair draw of so many."""
    if count <= _MOST_ANSWERS:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, _MOST_ANSWERS, replace=False))


class Products:
    """The sum over blocks of features of `block @ block.T`, in one matrix from first to last."""

    def __init__(self, answers: int) -> None:
        self._upper = np.zeros((answers, answers), np.float32, order="F")

    def add(self, block: Matrix) -> None:
        self._upper = ssyrk(1.0, block.T, beta=1.0, c=self._upper, trans=1, overwrite_c=1)

    def find_components(self) -> Components:
        """The leading ones; features must have mean 0. More blocks may be added afterwards."""
        # The steps are so small that several threads mostly wait for each other.
        with threadpool_limits(1):
            vectors, variances = self._decompose()
        kept = variances > _SMALLEST * max(variances.max(), 1e-30)
        vectors, spreads = vectors[:, kept], np.sqrt(variances[kept])
        return Components(
            values=np.ascontiguousarray(vectors * spreads),
            shares=np.ascontiguousarray(vectors / spreads),
        )

    def _decompose(self) -> tuple[np.ndarray, np.ndarray]:
        count = len(self._upper)
        if count <= _EXACT:
            wanted = (max(0, count - COMPONENTS), count - 1)
            variances, vectors = eigh(self._upper, lower=False, subset_by_index=wanted)
            return vectors[:, ::-1], variances[::-1]
        for row in range(count):
            self._upper[row + 1 :, row] = self._upper[row, row + 1 :]
        vectors, variances, _ = randomized_svd(
            self._upper, COMPONENTS, n_iter=_ITERATIONS, random_state=0, flip_sign=False
        )
        return vectors, variances
