"""What scorers compute with, NumPy arrays (a comparison) or tensors (live) in the same code, and
how they are fitted, on matrices that fill much of the memory: logistic regression along a path of
regularization strengths, and principal components for any number of features."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy  # its modules load on first use
from jaxtyping import Float32, Float64, Int
from threadpoolctl import threadpool_limits

from clew.base.errors import InputError, StoreError
from clew.hallucination.detectors.probes.method import Features, Fitted, Scorer, Scores
from clew.metrics.ranking import auroc

# A NumPy array or a tensor.
Array = Any
# As scikit-learn's C: the inverse of the regularization strength.
STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
# The gradient tolerance: smaller ones change AUROCs only in the fourth decimal. The step limit, the
# same as scikit-learn's, only ends fits that overfit before that.
_SLOPE = 1e-4
_MOST_STEPS = 100
# Past the best strength the AUROC falls and fits take longest: this much counts as a fall.
_FALL = 0.005
Matrix = Float32[np.ndarray, "rows features"]
Labels = Int[np.ndarray, " rows"]
COMPONENTS = 512
# The Gram matrix of 8,192 answers takes 270 MB; components hardly change with more answers.
_MOST_ANSWERS = 8192
# This few are decomposed exactly; more iteratively, as in scikit-learn's PCA.
_EXACT = 2048
_ITERATIONS = 2
# Relative to the largest variance: anything smaller is rounding.
_SMALLEST = 1e-6


def is_numpy(array: Array) -> bool:
    return isinstance(array, np.ndarray)


def library(array: Array) -> Any:
    """NumPy, or PyTorch for tensors: what scorers need of them has the same name in both."""
    if is_numpy(array):
        return np
    import torch  # probes are fitted without it

    return torch


def doubled(array: Array) -> Array:
    return array.astype(np.float64) if is_numpy(array) else array.double()


def single(array: Array) -> Array:
    return array.astype(np.float32) if is_numpy(array) else array.float()


def where(is_first: Array, first: Array, other: float) -> Array:
    """Unlike a product with `is_first`, this does not spread NaN from values that do not count."""
    if is_numpy(first):
        return np.where(is_first, first, np.asarray(other, first.dtype))
    return first.where(is_first, other)


def to_numpy(array: Array) -> np.ndarray:
    return array if is_numpy(array) else array.detach().cpu().numpy()


def like(example: Array, values: np.ndarray) -> Array:
    """The values as what `example` is, on its device."""
    if is_numpy(example):
        return values
    return library(example).from_numpy(values).to(example.device)


def read_ragged(data: Features, field: str, split: str) -> Sequence[np.ndarray]:
    """A ragged field as NumPy arrays; those on a GPU are copied at once."""
    answers = data.read(field, split)
    if not len(answers) or is_numpy(answers[0]):
        return answers
    if len(answers) == 1:
        return [to_numpy(answers[0]).reshape(-1)]
    torch = library(answers[0])
    flat = torch.cat([answer.reshape(-1) for answer in answers]).cpu().numpy()
    return np.split(flat, np.cumsum([len(answer) for answer in answers])[:-1])


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A score that is linear in the features; above 0 is more likely hallucinated than not."""

    weights: Float32[np.ndarray, " features"]
    bias: float

    @property
    def parameters(self) -> int:
        return len(self.weights) + 1

    def score(self, matrix: Array) -> Array:
        """Raises InputError for answers of another shape, those of another model."""
        if matrix.shape[1] != len(self.weights):
            raise InputError(
                f"these answers have {matrix.shape[1]:,} features each, but the method was "
                f"fitted on {len(self.weights):,}: use answers of the same model."
            )
        return matrix @ self.weights + self.bias

    def times(self, factor: float) -> "Linear":
        return Linear(weights=self.weights * np.float32(factor), bias=self.bias * factor)


@dataclass(frozen=True, kw_only=True)
class LinearScorer(Scorer):
    """A linear score of something that its subclass reads."""

    linear: Linear

    @property
    def parameters(self) -> int:
        return self.linear.parameters


@dataclass(frozen=True, kw_only=True)
class AnswerMeasure(Scorer):
    """A fixed measure of each answer by itself. One that has none gets `without`, the median of the
    training answers."""

    without: float = 0.0

    def find(self, data: Features, split: str) -> Sequence[float | None]:
        raise NotImplementedError

    def score(self, data: Features, split: str) -> Scores:
        found = self.find(data, split)
        return np.array([self.without if one is None else one for one in found], np.float32)

    def learn(
        self, data: Features, check: Callable[[Sequence[float]], None] = lambda _: None
    ) -> Fitted:
        """Find the median; `check` may refuse the values."""
        known = [one for one in self.find(data, "train") if one is not None]
        check(known)
        return Fitted(scorer=replace(self, without=float(np.median(known)) if known else 0.0))


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The mean and standard deviation of every feature over the training answers."""

    mean: Float32[np.ndarray, " features"]
    spread: Float32[np.ndarray, " features"]

    def apply(self, matrix: Array) -> Array:
        """NumPy arrays in place: there is no memory for a second matrix of this size. Tensors are
        those of live answers, which others read too."""
        if not is_numpy(matrix):
            return (matrix - self.mean) / self.spread
        matrix -= self.mean
        matrix /= self.spread
        return matrix

    def undo(self, linear: Linear) -> Linear:
        """The same score for unscaled features."""
        weights = linear.weights / self.spread
        return Linear(weights=weights, bias=linear.bias - float(self.mean @ weights))


def average(matrix: Matrix, name: str) -> Float32[np.ndarray, " features"]:
    """The mean of every feature. Raises StoreError for non-finite values; `name` says where."""
    mean = matrix.mean(axis=0, dtype=np.float64).astype(np.float32)
    if not np.isfinite(mean).all():
        raise StoreError(
            f"{name} contains NaN or infinity in the training split, so it cannot be used for "
            'training. Create the samples again with "clew preprocess".'
        )
    return mean


def standardize(matrix: Matrix, name: str) -> Scale:
    """Scale the matrix in place; a constant feature becomes 0. Raises StoreError for non-finite
    values; `name` says where."""
    mean = average(matrix, name)
    matrix -= mean
    spread = np.sqrt(np.einsum("ij,ij->j", matrix, matrix) / len(matrix))
    spread[spread == 0] = 1
    matrix /= spread
    return Scale(mean=mean, spread=spread)


def fit_path(
    matrix: Matrix, labels: Labels, *, balanced: bool = False
) -> Iterator[tuple[float, Linear]]:
    """L2 logistic regression, yielding one strength after the other, so that the caller may stop
    early. The bias is not regularized. `balanced` gives both classes the same weight.
    """
    signs = np.where(labels > 0, np.float32(1), np.float32(-1))
    shares = _shares(labels, balanced)
    point = np.zeros(matrix.shape[1] + 1)
    for strength in STRENGTHS:
        loss = partial(_penalized_loss, matrix, signs, shares, 1 / (strength * len(matrix)))
        point = minimize_loss(loss, point)
        yield strength, Linear(weights=point[:-1].astype(np.float32), bias=float(point[-1]))


def minimize_loss(loss: Callable[..., Any], point: np.ndarray) -> Float64[np.ndarray, " size"]:
    """`loss` gives the value and its gradient."""
    options = {"maxiter": _MOST_STEPS, "gtol": _SLOPE, "maxcor": 20}
    return scipy.optimize.minimize(loss, point, jac=True, method="L-BFGS-B", options=options).x


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best fit of a path, by validation AUROC."""

    strength: float
    linear: Linear
    auroc: float


def choose_strength(
    path: Iterator[tuple[float, Linear]], validation: Matrix, labels: Labels
) -> Choice:
    """Follow a path until the AUROC falls; weaker regularization only overfits."""
    best: Choice | None = None
    for strength, linear in path:
        found = auroc(labels, linear.score(validation))
        if best is None or found > best.auroc:
            best = Choice(strength=strength, linear=linear, auroc=found)
        elif found < best.auroc - _FALL:
            break
    assert best is not None  # there are strengths
    return best


def _shares(labels: Labels, balanced: bool) -> Float32[np.ndarray, " rows"]:
    """The weight of every answer; they sum to 1."""
    if not balanced:
        return np.full(len(labels), 1 / len(labels), np.float32)
    return (0.5 / np.bincount(labels, minlength=2))[labels].astype(np.float32)


def _penalized_loss(
    matrix: Matrix,
    signs: np.ndarray,
    shares: np.ndarray,
    penalty: float,
    point: Float64[np.ndarray, " size"],
) -> tuple[float, np.ndarray]:
    """The mean loss with regularization, and its gradient; two passes over the matrix."""
    weights = point[:-1].astype(np.float32)
    margins = signs * (matrix @ weights + np.float32(point[-1]))
    losses = np.logaddexp(np.float32(0), -margins)
    pull = -signs * shares * scipy.special.expit(-margins)
    slope = np.empty_like(point)
    slope[:-1] = pull @ matrix + penalty * point[:-1]
    slope[-1] = pull.sum(dtype=np.float64)
    loss = float(shares @ losses.astype(np.float64))
    return loss + penalty / 2 * float(point[:-1] @ point[:-1]), slope


class Components(NamedTuple):
    """`values`: the coordinates of the answers. `shares`: the contribution of each answer to a
    component, so that a feature's weight is its values over the answers times the shares."""

    values: Float32[np.ndarray, "answers components"]
    shares: Float32[np.ndarray, "answers components"]


def draw_answers(count: int) -> Int[np.ndarray, " some"]:
    """The training answers that components are computed from: all, or a random subset."""
    if count <= _MOST_ANSWERS:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, _MOST_ANSWERS, replace=False))


class Products:
    """The sum over blocks of features of `block @ block.T`, accumulated in one matrix."""

    def __init__(self, answers: int) -> None:
        self._upper = np.zeros((answers, answers), np.float32, order="F")

    def add(self, block: Matrix) -> None:
        self._upper = scipy.linalg.blas.ssyrk(
            1.0, block.T, beta=1.0, c=self._upper, trans=1, overwrite_c=1
        )

    def find_components(self, most: int = COMPONENTS) -> Components:
        """The leading components; features must have mean 0. More blocks may be added later."""
        # The steps are so small that several threads would mostly wait for each other.
        with threadpool_limits(1):
            vectors, variances = self._decompose(most)
        kept = variances > _SMALLEST * max(variances.max(), 1e-30)
        vectors, spreads = vectors[:, kept], np.sqrt(variances[kept])
        return Components(
            values=np.ascontiguousarray(vectors * spreads),
            shares=np.ascontiguousarray(vectors / spreads),
        )

    def _decompose(self, most: int) -> tuple[np.ndarray, np.ndarray]:
        count = len(self._upper)
        if count <= _EXACT:
            wanted = (max(0, count - most), count - 1)
            variances, vectors = scipy.linalg.eigh(self._upper, lower=False, subset_by_index=wanted)
            return vectors[:, ::-1], variances[::-1]
        from sklearn.utils.extmath import randomized_svd  # slow to import

        for row in range(count):
            self._upper[row + 1 :, row] = self._upper[row, row + 1 :]
        vectors, variances, _ = randomized_svd(
            self._upper, most, n_iter=_ITERATIONS, random_state=0, flip_sign=False
        )
        return vectors, variances
