"""The attention graph of an answer: which token attends to which, layer by layer.

The picture has one row per token. Prompts are folded to the question, and very long texts in their
middle; edges of folded tokens meet in the row that stands for them.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int

# Weaker edges are invisible; the captions say what share of the attention is not drawn.
_FAINTEST = 0.005
_MAX_EDGES = 1500


@dataclass(frozen=True, kw_only=True)
class DrawnEdges:
    """Edges of one layer between rows of the picture; `target` attends to `source`."""

    source: Int[np.ndarray, " edges"]
    target: Int[np.ndarray, " edges"]
    weight: Float32[np.ndarray, " edges"]


@dataclass(frozen=True, kw_only=True)
class AttentionShares:
    """Where the attention of the answer's tokens goes in one layer; sums to 1."""

    first: float  # the first token, the attention sink
    prompt: float
    answer: float
    itself: float
    unstored: float


@dataclass(frozen=True, kw_only=True)
class AttentionGraph:
    """The strongest attention weights of every token in every layer, averaged over heads."""

    sources: Int[np.ndarray, "layers tokens k"]
    weights: Float32[np.ndarray, "layers tokens k"]
    prompt_length: int

    @property
    def tokens(self) -> int:
        return self.weights.shape[1]

    def edges(self, layer: int, rows: "Rows") -> DrawnEdges:
        """The edges of a layer between rows, strongest first; none from a token to itself."""
        target = np.broadcast_to(np.arange(self.tokens)[:, None], self.sources[layer].shape)
        source, weight = self.sources[layer].astype(np.int64), self.weights[layer]
        kept = (weight > 0) & (source < target)
        # Tokens of one row are averaged, so that the weights of a row sum to at most 1.
        weight = weight / np.bincount(rows.of_token)[rows.of_token][:, None]
        return _merge(rows.of_token[source[kept]], rows.of_token[target[kept]], weight[kept])

    def shares(self, layer: int) -> AttentionShares:
        """Means over the answer's tokens, or over all tokens without an answer."""
        start = self.prompt_length if self.prompt_length < self.tokens else 0
        source, weight = self.sources[layer, start:].astype(np.int64), self.weights[layer, start:]
        target = np.arange(start, self.tokens)[:, None]
        itself, first = source == target, (source == 0) & (target > 0)
        prompt = ~itself & ~first & (source < self.prompt_length)
        answer = ~itself & ~first & (source >= self.prompt_length)
        count = max(1, len(weight))
        parts = [float((weight * part).sum()) / count for part in (first, prompt, answer, itself)]
        unstored = max(0.0, 1.0 - sum(parts))
        return AttentionShares(
            first=parts[0], prompt=parts[1], answer=parts[2], itself=parts[3], unstored=unstored
        )


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of the picture. `token[r]` is the row's token, -1 where tokens are folded."""

    token: Int[np.ndarray, " rows"]
    of_token: Int[np.ndarray, " tokens"]
    folded: dict[int, int]  # row -> how many tokens it stands for

    def __len__(self) -> int:
        return len(self.token)


def build_graph(sources: np.ndarray, weights: np.ndarray, prompt_length: int) -> AttentionGraph:
    return AttentionGraph(sources=sources, weights=weights, prompt_length=prompt_length)


def fold_rows(tokens: int, prompt_length: int, limit: int, kept: range | None = None) -> Rows:
    """One row per token, but at most about `limit`. With `kept`, the prompt shows its first token
    and these. Otherwise the middle of a long prompt is folded; so is the middle of a long answer.
    """
    hidden = np.zeros(tokens, bool)
    if kept is None:
        _hide_middle(hidden[:prompt_length], max(limit - (tokens - prompt_length), limit // 3))
    else:
        _hide_around(hidden[:prompt_length], kept)
    shown = prompt_length - int(hidden[:prompt_length].sum())
    _hide_middle(hidden[prompt_length:], max(limit - shown, limit - limit // 3))
    # A run of folded tokens is one row: a new row begins where a token is kept or a run begins.
    begins = ~hidden | np.concatenate([[True], ~hidden[:-1]])
    begins[prompt_length : prompt_length + 1] = True
    of_token = np.cumsum(begins) - 1
    starts = np.flatnonzero(begins)
    token = np.where(hidden[starts], -1, starts)
    counts = np.bincount(of_token, minlength=len(starts))
    folded = {int(row): int(counts[row]) for row in np.flatnonzero(token < 0)}
    return Rows(token=token, of_token=of_token, folded=folded)


def _hide_middle(hidden: np.ndarray, room: int) -> None:
    if len(hidden) > room:
        head = max(1, room // 4)
        hidden[head : len(hidden) - max(1, room - head - 1)] = True


def _hide_around(hidden: np.ndarray, kept: range) -> None:
    """Hide the prompt around the kept tokens. A single token stays, since a folded row would take
    as much room."""
    for start, stop in ((1, kept.start), (kept.stop, len(hidden))):
        if stop - start > 1:
            hidden[start:stop] = True


def _merge(source: np.ndarray, target: np.ndarray, weight: np.ndarray) -> DrawnEdges:
    """Edges between the same rows become one; the faintest are dropped."""
    pairs, place = np.unique(np.stack([source, target]), axis=1, return_inverse=True)
    total = np.bincount(place.reshape(-1), weight, minlength=pairs.shape[1]).astype(np.float32)
    kept = (pairs[0] != pairs[1]) & (total >= _FAINTEST)
    order = np.flatnonzero(kept)[np.argsort(-total[kept], kind="stable")][:_MAX_EDGES]
    return DrawnEdges(source=pairs[0, order], target=pairs[1, order], weight=total[order])
