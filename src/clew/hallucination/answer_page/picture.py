"""What a picture shows: one or two answers with the arrays that are drawn, which token attends to
which, and what the answers are compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int

from clew.hallucination.answer_page.latent import Latent, spread_layers, unit_length
from clew.hallucination.answer_page.store import Kind
from clew.hallucination.traces.schema import CONTEXT
from clew.hallucination.traces.token_texts import shorten, visible_text

# Tokens of the prompt that are shown where it is folded.
_MOST_OF_PROMPT, _END_OF_PROMPT = 60, 16
# Weaker edges are invisible; the captions say what share of the attention is not drawn.
_FAINTEST = 0.005
_MAX_EDGES = 1500
_MOST_ACCEPTED = 8
_LONGEST = 24  # letters of a token in an attention graph
_WHOLE = 1000  # weights are stored as integer thousandths


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A detector's verdict on an answer: `risk` is the probability that it is hallucinated."""

    method: str
    risk: float
    threshold: float

    @property
    def is_flagged(self) -> bool:
        return self.risk > self.threshold


class DrawnEdges(NamedTuple):
    """Edges of one layer between rows of the picture; `target` attends to `source`."""

    source: Int[np.ndarray, " edges"]
    target: Int[np.ndarray, " edges"]
    weight: Float32[np.ndarray, " edges"]


class AttentionShares(NamedTuple):
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
        return AttentionShares._make([*parts, max(0.0, 1.0 - sum(parts))])


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of the picture. `token[r]` is the row's token, -1 where tokens are folded."""

    token: Int[np.ndarray, " rows"]
    of_token: Int[np.ndarray, " tokens"]
    folded: dict[int, int]  # row -> how many tokens it stands for

    def __len__(self) -> int:
        return len(self.token)


def fold_rows(tokens: int, prompt_length: int, limit: int, question: range | None = None) -> Rows:
    """One row per token, but at most about `limit`. With `question`, the prompt shows its first
    token and these. Otherwise the middle of a long prompt is folded; so is the middle of a long
    answer."""
    hidden = np.zeros(tokens, bool)
    if question is None:
        _hide_middle(hidden[:prompt_length], max(limit - (tokens - prompt_length), limit // 3))
    else:
        _hide_around(hidden[:prompt_length], question)
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
    return DrawnEdges(pairs[0, order], pairs[1, order], total[order])


@dataclass(frozen=True, kw_only=True)
class ShownAnswer:
    """Everything that is drawn for one answer; None where the store does not have it, and `notes`
    say why. `score` is the label's correctness, from 0 to 1 (correct)."""

    number: int
    question_id: str
    question: str
    answer: str
    accepted: tuple[str, ...]
    category: str | None
    stop_reason: str | None
    kind: Kind | None
    score: float | None
    texts: tuple[str, ...]
    prompt_length: int
    logprobs: Float32[np.ndarray, " answer"] | None
    entropies: Float32[np.ndarray, " answer"] | None
    graph: AttentionGraph | None
    states: Float32[np.ndarray, "layers dim"] | None  # of unit length
    lookback: Float32[np.ndarray, "layers heads"] | None
    notes: tuple[str, ...]
    verdict: Verdict | None = None
    risks: Float32[np.ndarray, " answer"] | None = None  # of the tokens, from a token probe
    context: str | None = None

    @property
    def question_tokens(self) -> range:
        """The tokens of the prompt that hold the question; its end where they are not found."""
        prompt = self.texts[: self.prompt_length]
        wanted = self.question.strip()
        start = "".join(prompt).rfind(wanted) if wanted else -1
        if start < 0:
            return range(max(0, len(prompt) - _END_OF_PROMPT), len(prompt))
        ends = np.cumsum([len(text) for text in prompt])
        last = int(np.searchsorted(ends, start + len(wanted))) + 1
        first = int(np.searchsorted(ends, start, side="right"))
        return range(max(first, last - _MOST_OF_PROMPT), last)

    @property
    def answer_texts(self) -> tuple[str, ...]:
        return self.texts[self.prompt_length :]

    @property
    def layers(self) -> int:
        """The number of layers stored, 0 without any."""
        weights = None if self.graph is None else self.graph.weights
        known = [array for array in (self.states, self.lookback, weights) if array is not None]
        return len(known[0]) if known else 0

    @property
    def perplexity(self) -> float | None:
        if self.logprobs is None or not len(self.logprobs):
            return None
        return float(np.exp(-self.logprobs.mean()))


def read_answer(
    trace: Mapping[str, Any],
    texts: Sequence[str],
    kind: Kind | None,
    score: float | None,
    verdict: Verdict | None = None,
    risks: np.ndarray | None = None,
) -> ShownAnswer:
    """Read from a trace only what is drawn."""
    border = trace["prompt_length"]
    notes = (
        []
        if border is not None
        else ["the end of the prompt is not stored: all tokens count as answer"]
    )
    if border == len(texts):
        notes.append("the answer is empty: only the prompt has tokens")
    logprobs = _array(trace, "token_logprobs", notes, "token probabilities cannot be shown")
    states = _array(trace, "last_hidden", notes, "hidden states cannot be shown")
    lookback = _array(trace, "lookback", notes, "lookback ratios cannot be shown")
    attending: Any = trace.get("with_attention") or getattr(trace, "with_attention", ())
    layers = 0 if states is None else len(states)
    if lookback is not None:
        lookback = spread_layers(lookback, attending, layers)
    return ShownAnswer(
        number=trace["global_example_id"],
        question_id=trace["question_id"],
        question=trace["question"] or "",
        context=trace.get(CONTEXT),
        answer=trace["answer"] or "",
        accepted=tuple(text for text in trace["accepted_answers"] or () if text),
        category=trace["category"],
        stop_reason=trace["stop_reason"],
        kind=kind,
        score=score,
        texts=tuple(texts),
        prompt_length=border or 0,
        logprobs=logprobs,
        entropies=_array(trace, "token_entropies", [], "") if logprobs is not None else None,
        graph=_read_graph(trace, border or 0, notes, attending, layers),
        states=None if states is None else unit_length(states),
        lookback=lookback,
        notes=tuple(notes),
        verdict=verdict,
        risks=risks,
    )


def _array(trace: Mapping[str, Any], name: str, notes: list[str], effect: str) -> Any:
    value = trace.get(name)
    if value is None:
        notes.append(f'the trace has no "{name}": {effect}')
        return None
    wide = np.asarray(value, np.float32)
    if not np.isfinite(wide).all():
        notes.append(
            f'"{name}" of the trace contains non-finite values (NaN or infinity): {effect}'
        )
        return None
    return wide


def _read_graph(
    trace: Mapping[str, Any],
    border: int,
    notes: list[str],
    attending: Sequence[int],
    layers: int,
) -> AttentionGraph | None:
    effect = "attention cannot be shown"
    weights = _array(trace, "edge_weight", notes, effect)
    if weights is None:
        return None
    sources = trace.get("edge_source")
    if sources is None or not weights.size:
        notes.append(f'the trace has no "edge_source": {effect}')
        return None
    both = (spread_layers(one, attending, layers) for one in (sources, weights))
    sources, weights = both
    return AttentionGraph(sources=sources, weights=weights, prompt_length=border)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One answer, or two of them side by side, ready to be drawn."""

    store: str
    model: str | None
    answers: tuple[ShownAnswer, ...]
    layer: int
    layers: int
    latent: Latent | None
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        numbers = " and ".join(str(answer.number) for answer in self.answers)
        return f"Answer{'s' if len(self.answers) > 1 else ''} {numbers}"

    @property
    def origin(self) -> str:
        model = f", captured from {self.model}" if self.model else ""
        return f"{self.store}{model}"


class View(NamedTuple):
    """An attention graph as it is shown: `start` is the row where the answer starts, the number of
    rows when it is empty."""

    rows: Rows
    start: int
    texts: list[str]


def views_of(answer: ShownAnswer, most_rows: int = 200) -> list[View]:
    """With the prompt folded to the question and, if that hides anything, with the whole prompt."""
    assert answer.graph is not None
    tokens, border = answer.graph.tokens, answer.prompt_length
    short, whole = (
        fold_rows(tokens, border, most_rows, question)
        for question in (answer.question_tokens, None)
    )
    views = []
    for rows in (short, whole) if len(whole) > len(short) else (short,):
        texts = [
            f"… {rows.folded[row]:,} tokens …"
            if row in rows.folded
            else shorten(visible_text(answer.texts[token]), _LONGEST)
            for row, token in enumerate(rows.token)
        ]
        start = len(rows) if border >= tokens else int(rows.of_token[border])
        views.append(View(rows, start, texts))
    return views


def graph_data(answer: ShownAnswer, view: View) -> dict[str, Any]:
    """What the script needs: the edges of every layer, flat (source, target, thousandths)."""
    graph = answer.graph
    assert graph is not None
    edges, shares = [], []
    for layer in range(len(graph.weights)):
        source, target, weight = graph.edges(layer, view.rows)
        thousandths = np.rint(weight * _WHOLE).astype(int)
        edges.append(np.stack([source, target, thousandths], axis=1).reshape(-1).tolist())
        shares.append([round(part, 3) for part in graph.shares(layer)])
    return {"texts": view.texts, "start": view.start, "edges": edges, "shares": shares}


def tell_verdict(answer: ShownAnswer) -> str:
    verdict = answer.verdict
    assert verdict is not None
    side = "above" if verdict.is_flagged else "not above"
    return (
        f"{verdict.method}: risk {verdict.risk:.3f}, {side} the threshold of "
        f"{verdict.threshold:.3f}."
    )


def accepted_text(answer: ShownAnswer) -> str:
    more = len(answer.accepted) - _MOST_ACCEPTED
    words = "; ".join(answer.accepted[:_MOST_ACCEPTED]) or "(unknown)"
    return f"{words} and {more:,} more" if more > 0 else words


def describe_source(answer: ShownAnswer) -> str:
    """Number, question id, category and stop reason, on one line."""
    parts = [f"answer {answer.number}", answer.question_id]
    parts += [answer.category] if answer.category else []
    parts += [f"stop reason: {answer.stop_reason}"] if answer.stop_reason else []
    return " · ".join(parts)


def describe_probabilities(answer: ShownAnswer) -> str:
    """The answer in one sentence; empty when its probabilities are not stored."""
    if answer.logprobs is None or answer.perplexity is None:
        return ""
    least = int(np.argmin(answer.logprobs))
    word = visible_text(answer.answer_texts[least])
    chance = percent_text(float(np.exp(answer.logprobs[least])))
    return f"Perplexity {answer.perplexity:.2f}; least likely token: “{word}” ({chance})."


def percent_text(share: float) -> str:
    if 0 < share < 0.01:
        return "<1%"
    return f"{min(share, 0.99 if share < 1 else 1.0):.0%}"
