"""A store's basis: fitted on the states of the first questions with their accepted answers, or
taken from another store, so that the nodes of both are comparable."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from clew.base.errors import InputError, StoreError
from clew.base.progress import Reporter, StepStarted, WorkAdvanced, report_work
from clew.base.texts import counted
from clew.hallucination.llm.models import LoadedModel
from clew.hallucination.llm.observe import ModelObserver, listen_to_whole
from clew.hallucination.llm.prompts import shared_prefix
from clew.hallucination.questions import Question
from clew.hallucination.traces.basis import BASIS_NAME, Basis, fit_basis, load_basis
from clew.hallucination.traces.schema import TraceShape
from clew.storage.manifest import read_manifest
from clew.storage.reading import read_bounded
from clew.storage.working_copy import fetched

_BASIS_QUESTIONS = 64
_BASIS_TOKENS_PER_COMPONENT = 16
_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class OtherBasis:
    """The basis of another store: its file."""

    content: bytes
    sha256: str

    @classmethod
    def open(cls, store: Path, model: Mapping[str, Any], shape: TraceShape) -> Self:
        """Raises InputError, with both values, for the basis of another model or shape, and
        StoreError for a store without an intact one."""
        manifest = read_manifest(store)
        sha256 = manifest.files.get(BASIS_NAME)
        if manifest.kind != "traces" or sha256 is None:
            raise InputError(
                f"it contains {manifest.kind}, and no basis: give a store of traces that "
                '"clew extract" wrote.',
                setting="basis",
                value=store,
            )
        content = _read_file(store)
        if content is None or hashlib.sha256(content).hexdigest() != sha256:
            raise StoreError(
                f"{store / BASIS_NAME} is missing or damaged: restore it from a backup."
            )
        theirs = manifest.settings.get("model") or {}
        _refuse_other(store, "fingerprint", theirs.get("fingerprint"), model.get("fingerprint"))
        found = list(load_basis(store, sha256).components.shape)
        _refuse_other(store, "shape", found, [shape.layers, shape.dim, shape.node_dim])
        return cls(content=content, sha256=sha256)


def _read_file(store: Path) -> bytes | None:
    with fetched(store, BASIS_NAME) as path:
        return read_bounded(path, path.stat().st_size) if path.is_file() else None


def _refuse_other(store: Path, what: str, theirs: object, ours: object) -> None:
    if theirs != ours:
        raise InputError(
            f"its basis is of a model with {what} {theirs}, but this capture's has {ours}: use "
            "the same model and `node_dim`, or omit `basis`.",
            setting="basis",
            value=store,
        )


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
            sample.keep = _kept_tokens(part, skip, first=start == 0).to(loaded.device)
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
