"""Fit a store's basis on the states of the first questions with their accepted answers."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from clew.hallucination.capture.dialogue import shared_prefix
from clew.hallucination.capture.models import LoadedModel
from clew.hallucination.capture.observe import ModelObserver, listen_to_whole
from clew.hallucination.questions import Question
from clew.hallucination.traces.basis import Basis, fit_basis
from clew.progress import Reporter, StepStarted, WorkAdvanced, report_work
from clew.wording import counted

_BASIS_QUESTIONS = 64
_BASIS_TOKENS_PER_COMPONENT = 16
_ROWS = 16


class _StateSample:
    """A listener that collects the states of real tokens in every layer to fit a basis."""

    def __init__(self, layers: int, reporter: Reporter) -> None:
        self.states: list[list[Tensor]] = [[] for _ in range(layers)]
        self.keep: Tensor | None = None
        self._reporter = reporter

    def on_hidden(self, layer: int, states: Tensor) -> None:
        assert self.keep is not None
        self.states[layer].append(states[self.keep].float())
        self._reporter(WorkAdvanced())

    def each_layer(self) -> Iterator[Tensor]:
        for layer in self.states:
            yield torch.cat(layer)
            self._reporter(WorkAdvanced())

    def on_attention(self, layer: int, weights: Tensor) -> None:
        """The basis does not depend on attention."""


def fit_on_questions(
    loaded: LoadedModel,
    observer: ModelObserver,
    questions: Sequence[Question],
    prompts: Sequence[Sequence[int]],
    *,
    node_dim: int,
    reporter: Reporter,
) -> Basis:
    """Fit on the first questions with their first accepted answer; shared tokens count once."""
    skip = max(1, len(shared_prefix(prompts)))
    sequences: list[list[int]] = []
    tokens = 0
    for question, prompt in zip(questions[:_BASIS_QUESTIONS], prompts, strict=False):
        text = f" {question.answers[0]}" if question.answers else ""
        answer = loaded.tokenizer.encode(text, add_special_tokens=False) if text else []
        sequences.append([*prompt, *answer][:512])
        tokens += len(sequences[-1]) - skip
        if tokens >= node_dim * _BASIS_TOKENS_PER_COMPONENT:
            break
    sample = _StateSample(observer.num_layers, reporter)
    starts = range(0, len(sequences), _ROWS)
    asked = counted(len(sequences), "question")
    name = f"fitting the basis of the projected states on {asked}"
    with report_work(
        reporter, StepStarted(name=name, parts=(len(starts) + 1) * observer.num_layers)
    ):
        for start in starts:
            part = sequences[start : start + _ROWS]
            sample.keep = _kept_tokens(part, skip, first=start == 0).to(loaded.model.device)
            listen_to_whole(loaded.model, observer, part, sample)
        return fit_basis(sample.each_layer(), node_dim)


def _kept_tokens(sequences: Sequence[Sequence[int]], skip: int, *, first: bool) -> Tensor:
    """Real tokens after the shared prefix, plus the prefix once without its first token. In most
    models the first token's state is much larger than all others and would dominate the basis.
    """
    width = max(len(sequence) for sequence in sequences)
    keep = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        keep[row, 1 if first and row == 0 else skip : len(sequence)] = True
    return keep
