"""The token probe: the risk of every token of an answer, from its projected states in a few layers,
its log-probability and the entropy it was chosen with."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.fitting import library

# How the tokens' logits make the answer's: their largest, their mean, or a mean weighted by
# attention.
Pooling = Literal["max", "mean", "attention"]
TrainedOn = Literal["answers", "spans"]
# Logits beyond this are as good as certain, and their exponentials fit in float32.
_FAR = 30.0
# The inputs beside the states: log-probability and entropy.
CONFIDENCE = 2


@dataclass(frozen=True, kw_only=True)
class TokenProbe:
    """A logistic regression per token. Its inputs are the token's `nodes` of the trace (the states
    of `layers` in the basis of the capture, concatenated), its log-probability and its entropy.

    A token's risk is a probability: that the token is hallucinated if `trained_on` is "spans";
    that the answer is, judging by this token, if it is "answers". `attention` weights the same
    inputs if tokens are pooled by attention. For spans, it holds the weights and the bias of a
    second regression, which tells the tokens of spans from those around them ("The capital is").
    The product of both outputs is not yet a probability, since the second regression favors spans:
    `slope` and `intercept` calibrate its logit over all tokens. `without` is the logit of an answer
    without tokens.
    """

    layers: tuple[int, ...]
    weights: Float32[np.ndarray, " inputs"]
    bias: float
    pooling: Pooling
    attention: Float32[np.ndarray, " inputs_and_bias"]
    without: float
    trained_on: TrainedOn
    slope: float = 1.0
    intercept: float = 0.0

    @property
    def parameters(self) -> int:
        attention = len(self.attention) if self.is_gated or self.pooling == "attention" else 0
        return len(self.weights) + 1 + attention

    @property
    def is_gated(self) -> bool:
        return self.trained_on == "spans" and len(self.attention) == len(self.weights) + 1

    @property
    def node_dim(self) -> int:
        return (len(self.weights) - CONFIDENCE) // len(self.layers)

    def score(self, nodes: Any, logprobs: Any, entropies: Any) -> Any:
        """The risk of every token, 0 to 1: `nodes` `[tokens, layers, node_dim]`, the others
        `[tokens]`; NumPy arrays or tensors, as the probe's weights are. Raises InputError for nodes
        of another shape."""
        logits = self.logits(self.inputs(nodes, logprobs, entropies))
        return 1 / (1 + library(logits).exp(-logits))

    def inputs(self, nodes: Any, logprobs: Any, entropies: Any) -> Any:
        """The matrix `[tokens, inputs]`."""
        if tuple(nodes.shape[1:]) != (len(self.layers), self.node_dim):
            raise InputError(
                f"these tokens have states of shape {list(nodes.shape[1:])}, but the token probe "
                f"was fitted on {[len(self.layers), self.node_dim]}: use answers of the same model."
            )
        columns = (
            nodes.reshape(len(nodes), len(self.weights) - CONFIDENCE),
            logprobs[:, None],
            entropies[:, None],
        )
        return library(nodes).concatenate(columns, axis=1)

    def logits(self, inputs: Any) -> Any:
        """The logits of the risks."""
        logits = inputs @ self.weights + self.bias
        if not self.is_gated:
            return logits
        claims = inputs @ self.attention[:-1] + self.attention[-1]
        return self.slope * gate(logits, claims) + self.intercept

    def pool(self, inputs: Any) -> float:
        """The logit of an answer with these tokens."""
        if not len(inputs):
            return self.without
        logits = self.logits(inputs)
        if self.pooling == "max":
            return float(logits.max())
        if self.pooling == "mean":
            return float(logits.mean())
        looks = inputs @ self.attention
        shares = library(looks).exp(looks - looks.max())
        return float((shares * logits).sum() / shares.sum())


def gate(logits: Any, claims: Any) -> Any:
    """The logit of the product of two probabilities, given as logits."""
    xp = library(logits)
    one, other = xp.exp(-logits.clip(-_FAR, _FAR)), xp.exp(-claims.clip(-_FAR, _FAR))
    return -xp.log(one + other + one * other)
