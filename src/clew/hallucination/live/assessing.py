"""What a detector says of answers that have passed through the model, generated or given."""

from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise

import numpy as np
import torch

from clew.base.errors import InputError
from clew.base.typed_json import read_as
from clew.hallucination.capture.config import Generation
from clew.hallucination.capture.models import LoadedModel
from clew.hallucination.capture.observe import ModelObserver, full_columns, record_fully
from clew.hallucination.detectors import Detector
from clew.hallucination.detectors.risk import Risk, unavailable
from clew.hallucination.live.features import SPLIT, LiveFeatures, needed_columns

_MOST_TOKENS, _MOST_DRAWS = 1 << 16, 100
_CUT_OFF = "the answer was cut off at its maximum length, so what it would have said is unknown"

_NOT_COMPARED = "the detector compares answers to a question, but none were drawn for this one"


def why_unavailable(tokens: Sequence[int], text: str, stop_reason: str) -> str | None:
    """Why an answer is not checked, whatever a detector says of it."""
    if stop_reason == "canceled":
        return "the answer was canceled before its end"
    if not tokens or not text.strip():
        return "the answer is empty"
    return _CUT_OFF if stop_reason == "length" else None


def read_generation(detector: Detector) -> Generation:
    """How the detector's training answers were generated; defaults for what it does not say.
    Raises InputError for values that cannot be used."""
    # As manifests name them.
    names = {"samples": "draws", "sample_temperature": "draw_temperature"}
    made = {names.get(name, name): value for name, value in detector.generation.items()}
    known = {field.name for field in fields(Generation)} & made.keys()
    usual = {"max_new_tokens": 32, "num_beams": 1, "cut": "none", "draws": 0}
    try:
        found = read_as(
            Generation,
            {**usual, "draw_temperature": 1.0, **{name: made[name] for name in known}},
            "generation",
        )
        if not (1 <= found.max_new_tokens <= _MOST_TOKENS and 0 <= found.draws <= _MOST_DRAWS):
            raise ValueError(f"{found.max_new_tokens} tokens and {found.draws} draws")
    except ValueError as error:
        raise InputError(
            f"the detector {detector.name} does not say how to generate answers ({error}): make it "
            "again with this version of clew."
        ) from None
    return found


def recorded_columns(detector: Detector, *, tokens: bool = False) -> frozenset[str]:
    """The trace columns that assessing an answer needs; with `tokens`, also those of its tokens."""
    nodes = {"nodes"} if tokens and detector.tokens is not None else set()
    return needed_columns(detector.fields, detector.samples) | nodes


def assess(detector: Detector, features: LiveFeatures) -> list[Risk]:
    """The risk of every answer; those that cannot be checked are unavailable with the reason."""
    found = detector.assess(features.drop_unusable())
    reasons = [why_unavailable(a.tokens, a.text, a.stop_reason) for a in features.answers]
    if "samples" in detector.fields:
        for row, answer in enumerate(features.answers):
            reasons[row] = reasons[row] or (None if answer.samples else _NOT_COMPARED)
    for row, reason in features.unusable.items():
        reasons[row] = reasons[row] or f"the answer cannot be scored: {reason}"
    return [
        risk if reason is None else unavailable(reason, method=detector.name)
        for risk, reason in zip(found, reasons, strict=True)
    ]


def assess_tokens(detector: Detector, features: LiveFeatures) -> Sequence[tuple[float, ...] | None]:
    """The risk of every token of every answer; None without a token probe."""
    probe = detector.tokens
    if probe is None:
        return [None] * len(features.answers)
    nodes = features.token_nodes(probe.layers)
    logprobs, entropies = (
        torch.cat(features.read(name, SPLIT)).to(nodes.device)
        for name in ("token_logprobs", "token_entropies")
    )
    risks = probe.score(nodes, logprobs, entropies).tolist()
    ends = np.cumsum([0, *(len(answer.tokens) for answer in features.answers)]).tolist()
    return [tuple(risks[start:end]) for start, end in pairwise(ends)]


def read_maps(loaded: LoadedModel, sequences: Sequence[Sequence[int]]) -> np.ndarray:
    """The full attention maps of sequences, flat, as stored."""
    record = record_fully(loaded.model, ModelObserver(loaded.model), sequences)
    return full_columns(record)["attentions"]
