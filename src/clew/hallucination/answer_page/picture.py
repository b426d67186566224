"""What a picture shows: one or two answers with the arrays that are drawn, and what they are
compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float32

from clew.hallucination.answer_page.graph import AttentionGraph, build_graph
from clew.hallucination.answer_page.store import Kind
from clew.hallucination.traces.schema import CONTEXT

# Tokens of the prompt that are shown where it is folded.
_MOST_OF_PROMPT, _END_OF_PROMPT = 60, 16


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A detector's verdict on an answer: `risk` is the probability that it is hallucinated."""

    method: str
    risk: float
    threshold: float

    @property
    def is_flagged(self) -> bool:
        return self.risk > self.threshold


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
    trace: Mapping[str, Any], texts: Sequence[str], kind: Kind | None, score: float | None
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
        graph=_read_graph(trace, border or 0, notes),
        states=None if states is None else unit_length(states),
        lookback=lookback,
        notes=tuple(notes),
    )


def unit_length(states: Float[np.ndarray, "*rows dim"]) -> Float32[np.ndarray, "*rows dim"]:
    """Scale states to unit length: norms grow tenfold over the layers, but direction is what
    separates answers."""
    wide = np.asarray(states, np.float32)
    # In two steps: the squares of large states would overflow.
    wide = wide / np.maximum(np.abs(wide).max(-1, keepdims=True), 1e-20)
    return wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-20)


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


def _read_graph(trace: Mapping[str, Any], border: int, notes: list[str]) -> AttentionGraph | None:
    effect = "attention cannot be shown"
    weights = _array(trace, "edge_weight", notes, effect)
    if weights is None:
        return None
    sources = trace.get("edge_source")
    if sources is None or not weights.size:
        notes.append(f'the trace has no "edge_source": {effect}')
        return None
    return build_graph(sources, weights, border)


@dataclass(frozen=True, kw_only=True)
class MeanPath:
    """Where answers with a label (None: all) lie in the plane: mean and standard deviation."""

    kind: Kind | None
    answers: int
    center: Float32[np.ndarray, "layers 2"]
    spread: Float32[np.ndarray, "layers 2"]


@dataclass(frozen=True, kw_only=True)
class Band:
    """Quartiles of a probe's output for one label by layer: -1 is correct, +1 hallucinated."""

    kind: Kind
    answers: int
    quartiles: Float32[np.ndarray, "3 layers"]


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Everything that the panels of hidden states draw besides the answers themselves."""

    paths: tuple[Float32[np.ndarray, "layers 2"] | None, ...]  # of the shown answers
    means: tuple[MeanPath, ...]
    explained: tuple[float, float]
    fitted_on: int
    excluded: int
    places: tuple[Float32[np.ndarray, " layers"] | None, ...]  # of the shown answers
    bands: tuple[Band, ...]
    lookback_mean: Float32[np.ndarray, "layers heads"] | None
    lookback_deviation: Float32[np.ndarray, "layers heads"] | None


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
