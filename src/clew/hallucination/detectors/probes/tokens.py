"""Fit the token probe: from answer labels, which every token inherits or which are learned through
pooling over the tokens, or from span labels. Layers, pooling and regularization are chosen on
validation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Self, get_args

import numpy as np
import scipy  # its modules load on first use
from jaxtyping import Float32, Float64, Int
from threadpoolctl import threadpool_limits

from clew.base.errors import InputError, StoreError
from clew.hallucination.detectors.probes.fitting import (
    Matrix,
    Scale,
    is_numpy,
    library,
    minimize_loss,
    standardize,
)
from clew.hallucination.detectors.probes.method import Features, Fitted, Scorer, method, shared
from clew.hallucination.detectors.tokens import Pooling, TokenProbe, gate
from clew.metrics.calibration import PlattScale
from clew.metrics.ranking import auroc

NODES, SPANS = "node_tokens", "token_labels"
NEEDS = (NODES, "token_logprobs", "token_entropies")
# The training tokens: with more, linear weights hardly change. Layers are compared on fewer.
_MOST_TOKENS = 1 << 17
_FEW_TOKENS = 1 << 14
_TOGETHER = 3  # of the best layers, as one candidate
# The labels of tokens: 1 hallucinated, 0 correct, -1 unsure, -2 outside of all spans.
_UNSURE, _OUTSIDE = -1, -2
# The weight of a token in a span against one outside, for telling the two apart: a hallucinated
# token that is taken for one outside costs more. The risks are calibrated afterwards.
_INSIDE_SHARE = 30.0
_GATE_STRENGTH = 1.0
# As scikit-learn's C, per answer (per token if there are span labels).
_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
_USUAL_STRENGTH = 1e-1
# How answer labels are learned: every token inherits its answer's, or through pooling.
Learned = Literal["inherit", "max", "attention"]
_LEARNED: tuple[Learned, ...] = get_args(Learned)


class Tokens:
    """The answer tokens of a split, of at most `most` tokens' worth of answers; answers without
    tokens are not among them. `labels` are the answers', `spans` those of the tokens, or
    None."""

    def __init__(self, data: Features, split: str, most: int | None = None) -> None:
        logprobs, entropies = (data.read(name, split) for name in NEEDS[1:])
        counts = np.array([len(answer) for answer in logprobs], np.int64)
        self.rows = _draw_rows(counts, most)
        self.counts = counts[self.rows]
        self.starts = np.cumsum(self.counts) - self.counts
        self.labels = data.labels[split][self.rows]
        self.spans = self._flat(data.read(SPANS, split)) if SPANS in data.fields else None
        columns = [self._flat(logprobs), self._flat(entropies)]
        self._confidence = np.stack(columns, axis=1).astype(np.float32)
        self._data, self._split = data, split

    def __len__(self) -> int:
        return len(self._confidence)

    def read(self, layers: Sequence[int]) -> Matrix:
        """The inputs of a probe on these layers, `[tokens, inputs]`."""
        nodes = [self._flat(self._data.read(NODES, self._split, layer=one)) for one in layers]
        if any(len(part) != len(self) for part in nodes):
            raise StoreError(
                f"the nodes of the {self._split} split do not match its token probabilities: "
                'create the samples again with "clew preprocess".'
            )
        return np.concatenate([*nodes, self._confidence], axis=1)

    def per_token(self, values: np.ndarray) -> np.ndarray:
        """A value per answer, repeated for each of its tokens."""
        return np.repeat(values, self.counts)

    def pool(self, logits: np.ndarray, shares: np.ndarray | None, how: Pooling) -> np.ndarray:
        """The answers' logits. `shares` are the tokens' in their answer, for attention."""
        if how == "max":
            return np.maximum.reduceat(logits, self.starts)
        if how == "mean" or shares is None:
            return np.add.reduceat(logits, self.starts) / self.counts
        return np.add.reduceat(shares * logits, self.starts)

    def attend(self, looks: np.ndarray) -> np.ndarray:
        """Softmax within each answer."""
        raised = np.exp(looks - self.per_token(np.maximum.reduceat(looks, self.starts)))
        return raised / self.per_token(np.add.reduceat(raised, self.starts))

    def _flat(self, answers: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate([answers[row] for row in self.rows.tolist()])


def _draw_rows(counts: Int[np.ndarray, " answers"], most: int | None) -> np.ndarray:
    """The answers with tokens; a random subset if they have too many."""
    rows = np.flatnonzero(counts)
    if not len(rows):
        raise InputError("none of the answers has a token, so there is nothing to score per token.")
    if most is None or counts.sum() <= most:
        return rows
    order = np.random.default_rng(0).permutation(rows)
    kept = np.searchsorted(np.cumsum(counts[order]), most, side="right")
    return np.sort(order[: max(1, kept)])


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Weights for standardized inputs. `quality` is the validation AUROC, of the tokens if there
    are span labels, else of the pooled answers. With a `gate_bias`, `attention` tells tokens of
    spans from others."""

    layers: tuple[int, ...]
    scale: Scale
    weights: Float32[np.ndarray, " inputs"]
    attention: Float32[np.ndarray, " inputs"]
    bias: float
    learned: Learned
    strength: float
    pooling: Pooling = "mean"
    quality: float = 0.0
    gate_bias: float | None = None


def _pooled_loss(
    matrix: Matrix,
    tokens: Tokens,
    labels: np.ndarray,
    shares: np.ndarray,
    pooling: Pooling | None,
    penalty: float,
    point: Float64[np.ndarray, " size"],
) -> tuple[float, np.ndarray]:
    """The mean loss of answers whose logit is pooled from their tokens, and its gradient; with
    `pooling=None`, the loss of the tokens themselves. The point is weights, bias and, for
    attention, the weights of the attention."""
    size, signs = matrix.shape[1], np.where(labels > 0, 1.0, -1.0)
    logits = matrix @ point[:size].astype(np.float32) + point[size]
    looks = None
    if pooling == "attention":
        looks = tokens.attend(matrix @ point[size + 1 :].astype(np.float32))
    found = logits if pooling is None else tokens.pool(logits, looks, pooling)
    margins = signs * found
    by_token = -signs * shares * scipy.special.expit(-margins)
    if looks is not None:
        by_token = looks * tokens.per_token(by_token)
    elif pooling is not None:  # of equal largest logits, each gets its part
        largest = (logits == tokens.per_token(found)).astype(np.float64)
        ties = np.add.reduceat(largest, tokens.starts)
        by_token = largest * tokens.per_token(by_token / ties)
    slopes = [by_token.astype(np.float32) @ matrix, [by_token.sum()]]
    if looks is not None:
        turn = by_token * (logits - tokens.per_token(found))
        slopes.append(turn.astype(np.float32) @ matrix)
    free = np.ones(len(point), bool)
    free[size] = False  # the bias is not regularized
    loss = float(shares @ np.logaddexp(0, -margins))
    loss += penalty / 2 * float(point[free] @ point[free])
    return loss, np.concatenate(slopes) + penalty * point * free


class _Fitting:
    """Fits probes on one pair of splits; the labels are those of spans if there are any."""

    def __init__(self, train: Tokens, validation: Tokens, *, spans: bool) -> None:
        self.train, self.validation, self.spans = train, validation, spans
        if spans and train.spans is not None:
            labels, shares = train.spans, (train.spans >= 0).astype(float)
            self._size = int(shares.sum())
        else:  # every answer weighs the same, however long
            labels, shares = train.per_token(train.labels), 1 / train.per_token(train.counts)
            self._size = len(train.labels)
        self._token_labels, self._token_shares = labels, shares / shares.sum()

    def fit(
        self, layers: tuple[int, ...], strengths: Sequence[float], ways: Sequence[Learned]
    ) -> Iterator[_Fit]:
        """Fits on these layers. Those through pooling start from inherited labels."""
        matrix = self.train.read(layers)
        scale = standardize(matrix, f"{NODES}, layers {layers},")
        validation = scale.apply(self.validation.read(layers))
        size = matrix.shape[1]
        own = list(self._follow(matrix, None, strengths, np.zeros(size + 1)))
        for way in ways:
            poolings: tuple[Pooling, ...] = ("max", "mean") if way == "inherit" else (way,)
            start = own[-1][1]
            start = np.concatenate([start, np.zeros(size)]) if way == "attention" else start
            path = own if way == "inherit" else self._follow(matrix, way, strengths, start)
            for strength, point in path:
                attention = point[size + 1 :] if way == "attention" else np.zeros(size)
                found = _Fit(
                    layers=layers,
                    scale=scale,
                    weights=point[:size].astype(np.float32),
                    attention=attention.astype(np.float32),
                    bias=float(point[size]),
                    learned=way,
                    strength=strength,
                )
                for how in poolings:
                    yield self._measure(replace(found, pooling=how), validation)

    def _follow(
        self, matrix: Matrix, pooling: Pooling | None, strengths: Sequence[float], point: np.ndarray
    ) -> Iterator[tuple[float, np.ndarray]]:
        """A path of weaker and weaker regularization, with warm starts."""
        train = self.train
        labels, shares = self._token_labels, self._token_shares
        if pooling is not None:
            labels, shares = train.labels, np.full(len(train.labels), 1 / len(train.labels))
        for strength in strengths:
            penalty = 1 / (strength * self._size)
            loss = partial(_pooled_loss, matrix, train, labels, shares, pooling, penalty)
            point = minimize_loss(loss, point)
            yield strength, point

    def _measure(self, fit: _Fit, validation: Matrix) -> _Fit:
        logits, pooled = _score(fit, self.validation, validation)
        spans = self.validation.spans
        if self.spans and spans is not None:
            return replace(fit, quality=auroc(spans[spans >= 0], logits[spans >= 0]))
        return replace(fit, quality=auroc(self.validation.labels, pooled))

    def add_gate(self, fit: _Fit) -> _Fit:
        """The fit with a second regression for tokens outside of spans, whose risk would be
        arbitrary otherwise, and the pooling that is best with it."""
        assert self.train.spans is not None
        matrix = fit.scale.apply(self.train.read(fit.layers))
        is_inside = self.train.spans != _OUTSIDE
        if is_inside.all():
            return fit
        shares = np.where(is_inside, _INSIDE_SHARE, 1.0)
        penalty = 1 / (_GATE_STRENGTH * len(is_inside))
        shares /= shares.sum()
        loss = partial(_pooled_loss, matrix, self.train, is_inside, shares, None, penalty)
        point = minimize_loss(loss, np.zeros(matrix.shape[1] + 1))
        gated = replace(fit, attention=point[:-1].astype(np.float32), gate_bias=float(point[-1]))
        validation = fit.scale.apply(self.validation.read(fit.layers))

        def measure(pooling: Pooling) -> float:
            _, pooled = _score(replace(gated, pooling=pooling), self.validation, validation)
            return auroc(self.validation.labels, pooled)

        poolings: tuple[Pooling, ...] = ("max", "mean")
        return replace(gated, pooling=max(poolings, key=measure))


def _score(fit: _Fit, tokens: Tokens, matrix: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """The logits of tokens and of answers, from standardized inputs."""
    logits = matrix @ fit.weights + np.float32(fit.bias)
    if fit.gate_bias is not None:
        logits = gate(logits, matrix @ fit.attention + np.float32(fit.gate_bias))
    looks = tokens.attend(matrix @ fit.attention) if fit.pooling == "attention" else None
    return logits, tokens.pool(logits, looks, fit.pooling)


@dataclass(frozen=True, kw_only=True)
class PooledTokens(Scorer, kind="tokens"):
    """The score of an answer, pooled from the logits of its tokens."""

    probe: TokenProbe
    reads = NEEDS

    @property
    def parameters(self) -> int:
        return self.probe.parameters

    def score(self, data: Features, split: str) -> np.ndarray:
        inputs = read_inputs(self.probe, data, split)
        return np.array([self.probe.pool(answer) for answer in inputs], np.float32)


def read_inputs(probe: TokenProbe, data: Features, split: str) -> Iterator[np.ndarray]:
    """The probe's inputs `[tokens, inputs]`, answer by answer."""
    layers = [data.read(NODES, split, layer=layer) for layer in probe.layers]
    confidence = (data.read(name, split) for name in NEEDS[1:])
    for *nodes, logprobs, entropies in zip(*layers, *confidence, strict=True):
        together = library(nodes[0]).stack(nodes, axis=1)
        if not is_numpy(together):
            logprobs, entropies = logprobs.to(together.device), entropies.to(together.device)
        yield probe.inputs(together, logprobs, entropies)


@method("token_probe", "Token probe", "probe", *NEEDS, also_reads=(SPANS,))
def learn_token_probe(data: Features) -> Fitted:
    """Fit the token probe, from span labels if the answers have enough of them. Raises InputError
    if no answer has a token."""
    return _fit_own(data)[0]


@shared
def _fit_own(data: Features) -> Fitted:
    """The method needs the probe, and every detector of these samples keeps it."""
    return fit_token_probe(data, spans=has_spans(data))


def find_token_probe(data: Features) -> TokenProbe | None:
    """The token probe that a detector keeps to shade tokens; None if the answers do not have its
    fields. Without spans, every token inherits its answer's label, so that its risk is calibrated
    as the probability that the answer is hallucinated. Learned through pooling, tokens that decide
    nothing may get any risk."""
    if not data.fields.issuperset(NEEDS):
        return None
    if has_spans(data):
        scorer = learn_token_probe(data).scorer
    else:
        scorer = fit_token_probe(data, spans=False, ways=("inherit",)).scorer
    assert isinstance(scorer, PooledTokens)
    return scorer.probe


def has_spans(data: Features) -> bool:
    """Whether both splits that a probe is fitted on have tokens of both classes."""
    if SPANS not in data.fields:
        return False
    found = (np.concatenate([np.zeros(0), *data.read(SPANS, s)]) for s in ("train", "validation"))
    return all((labels == 0).any() and (labels == 1).any() for labels in found)


def fit_token_probe(data: Features, *, spans: bool, ways: Sequence[Learned] = _LEARNED) -> Fitted:
    """Fit from span labels, or from answer labels alone in the best of these `ways`."""
    validation = Tokens(data, "validation")
    few = _Fitting(Tokens(data, "train", _FEW_TOKENS), validation, spans=spans)
    with threadpool_limits(1):  # the products are small: several threads would mostly wait
        layers = [
            max(few.fit((layer,), [_USUAL_STRENGTH], ["inherit"]), key=lambda one: one.quality)
            for layer in range(data.layers)
        ]
        ranked = [one.layers[0] for one in sorted(layers, key=lambda one: -one.quality)]
        sets = {(ranked[0],), tuple(sorted(ranked[:_TOGETHER]))}
        fitting = _Fitting(Tokens(data, "train", _MOST_TOKENS), validation, spans=spans)
        ways = ("inherit",) if spans else ways
        fits = [one for of in sorted(sets) for one in fitting.fit(of, _STRENGTHS, ways)]
    best = max(fits, key=lambda one: one.quality)
    if spans:
        best = fitting.add_gate(best)
    probe = _finish(best, fitting)
    chosen = {
        "layers": list(best.layers),
        **({} if spans else {"learned": best.learned}),
        "pooling": best.pooling,
        "C": best.strength,
        "trained_on": probe.trained_on,
    }
    return Fitted(scorer=PooledTokens(probe=probe), chosen=chosen)


def _finish(fit: _Fit, fitting: _Fitting) -> TokenProbe:
    """The probe for unscaled inputs, calibrated on validation."""
    tokens = fitting.validation
    matrix = fit.scale.apply(tokens.read(fit.layers))
    # Without the gate: of the tokens if they have labels, of spans or inherited; of the pooled
    # answers if it was learned through pooling.
    logits, pooled = _score(replace(fit, gate_bias=None), tokens, matrix)
    if fitting.spans and tokens.spans is not None:
        known = tokens.spans >= 0
        line = _Line.fit(tokens.spans[known], logits[known])
    elif fit.learned == "inherit":
        line = _Line.fit(tokens.per_token(tokens.labels), logits)
    else:
        line = _Line.fit(tokens.labels, pooled)
    fit = replace(fit, weights=line.slope * fit.weights, bias=line.apply(fit.bias))
    outer = _Line()
    if fit.gate_bias is not None and tokens.spans is not None:
        logits, _ = _score(fit, tokens, matrix)
        is_sure = tokens.spans != _UNSURE
        outer = _Line.fit(tokens.spans[is_sure] > 0, logits[is_sure])
    _, pooled = _score(fit, tokens, matrix)  # every pooling keeps the slope and the intercept
    weights, attention = fit.weights / fit.scale.spread, fit.attention / fit.scale.spread
    bias = fit.bias - float(fit.scale.mean @ weights)
    if fit.gate_bias is not None:
        attention = np.append(attention, fit.gate_bias - float(fit.scale.mean @ attention))
    return TokenProbe(
        layers=fit.layers,
        weights=weights.astype(np.float32),
        bias=bias,
        pooling=fit.pooling,
        attention=attention.astype(np.float32),
        without=outer.apply(float(np.median(pooled))),
        trained_on="spans" if fitting.spans else "answers",
        slope=outer.slope,
        intercept=outer.intercept,
    )


@dataclass(frozen=True, kw_only=True)
class _Line:
    """Calibrates logits; linear everywhere, so that it can become part of the weights."""

    slope: float = 1.0
    intercept: float = 0.0

    @classmethod
    def fit(cls, labels: np.ndarray, logits: np.ndarray) -> Self:
        """PlattScale's fit, without its compression of scores far out."""
        usual = PlattScale.fit(labels, logits)
        placed = (logits.astype(float) - usual.middle) / usual.spread
        found = replace(usual, slope=1.0, intercept=0.0).refit(labels, scipy.special.expit(placed))
        slope = found.slope / found.spread
        return cls(slope=slope, intercept=found.intercept - slope * found.middle)

    def apply(self, logit: float) -> float:
        return self.slope * logit + self.intercept
