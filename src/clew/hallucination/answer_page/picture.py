"""What a picture shows: one answer or two with the arrays that are drawn, and what they are
compared with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float32

from clew.hallucination.answer_page.graph import AttentionGraph, build_graph
from clew.hallucination.answer_page.store import Kind
from clew.hallucination.traces import Trace


@dataclass(frozen=True, kw_only=True)
class ShownAnswer:
    """What is drawn of one answer; None where the store does not have it, `notes` say why."""

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

    @property
    def answer_texts(self) -> tuple[str, ...]:
        return self.texts[self.prompt_length :]

    @property
    def layers(self) -> int:
        """How many layers are stored, 0 when nothing of them is."""
        weights = None if self.graph is None else self.graph.weights
        known = [array for array in (self.states, self.lookback, weights) if array is not None]
        return len(known[0]) if known else 0

    @property
    def perplexity(self) -> float | None:
        if self.logprobs is None or not len(self.logprobs):
            return None
        return float(np.exp(-self.logprobs.mean()))


def read_answer(
    trace: Trace, texts: Sequence[str], kind: Kind | None, score: float | None
) -> ShownAnswer:
    """Read of a trace what is drawn, and no more."""
    border = trace["prompt_length"]
    notes = [] if border is not None else ["where the prompt ends is not stored: all tokens count"]
    if border == len(texts):
        notes.append("the answer is empty: only the prompt has tokens")
    logprobs = _array(trace, "token_logprobs", notes, "how sure the model was cannot be shown")
    states = _array(trace, "last_hidden", notes, "the way through the layers cannot be shown")
    lookback = _array(trace, "lookback", notes, "there is no map of the heads")
    return ShownAnswer(
        number=trace["global_example_id"],
        question_id=trace["question_id"],
        question=trace["question"] or "",
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
    """States grow tenfold over the layers; their direction is what tells answers apart."""
    wide = np.asarray(states, np.float32)
    # In two steps, so that squares of large states do not overflow.
    wide = wide / np.maximum(np.abs(wide).max(-1, keepdims=True), 1e-20)
    return wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-20)


def _array(trace: Trace, name: str, notes: list[str], effect: str) -> Any:
    value = trace.get(name)
    if value is None:
        notes.append(f'the trace has no "{name}": {effect}')
        return None
    wide = np.asarray(value, np.float32)
    if not np.isfinite(wide).all():
        notes.append(f'"{name}" of the trace holds values that are no numbers: {effect}')
        return None
    return wide


def _read_graph(trace: Trace, border: int, notes: list[str]) -> AttentionGraph | None:
    effect = "the attention graph cannot be shown"
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
    """Where answers of a kind (None: all) lie in the plane: mean and standard deviation."""

    kind: Kind | None
    answers: int
    center: Float32[np.ndarray, "layers 2"]
    spread: Float32[np.ndarray, "layers 2"]


@dataclass(frozen=True, kw_only=True)
class Band:
    """Quartiles of a kind's place between right (-1) and made up (+1), layer by layer."""

    kind: Kind
    answers: int
    quartiles: Float32[np.ndarray, "3 layers"]


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Everything that the panels of the latent space draw besides the answers themselves."""

    paths: tuple[Float32[np.ndarray, "layers 2"] | None, ...]  # of the shown answers
    means: tuple[MeanPath, ...]
    explained: tuple[float, float]
    fitted_on: int
    left_out: int
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
