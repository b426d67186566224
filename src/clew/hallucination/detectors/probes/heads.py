"""Methods on one number a layer and head: LLM-Check's attention score, and Lookback Lens."""

from dataclasses import dataclass

import numpy as np

from clew.hallucination.detectors.probes.logistic import (
    Linear,
    choose_strength,
    fit_path,
    standardize,
)
from clew.hallucination.detectors.probes.method import Features, Fitted, Scores
from clew.metrics import auroc

DIAGONAL = "log_diagonal_answer"
LOOKBACK = "lookback"


@dataclass(frozen=True, kw_only=True)
class AttentionScore:
    """Per layer, the sum over heads of the mean log A_ii over the answer's rows. Higher counts as
    more likely made up, as it is defined; an answer without tokens gets the training's median."""

    layer: int
    without: float
    parameters: int = 0

    def score(self, data: Features, split: str) -> Scores:
        found = data.read(DIAGONAL, split, layer=self.layer).sum(axis=1)
        return np.where(has_tokens(data, split), found, np.float32(self.without))


@dataclass(frozen=True, kw_only=True)
class HeadsProbe:
    """A linear score of a number a layer and head."""

    field: str
    linear: Linear

    @property
    def parameters(self) -> int:
        return self.linear.parameters

    def score(self, data: Features, split: str) -> Scores:
        return self.linear.score(_read_flat(data, self.field, split))


def learn_attention_score(data: Features) -> Fitted:
    """The layer is the best in the validation split."""
    known = has_tokens(data, "train")
    by_layer = [_at_layer(data, layer, known) for layer in range(data.layers)]
    labels = data.labels["validation"]
    best = max(by_layer, key=lambda one: auroc(labels, one.score(data, "validation")))
    return Fitted(scorer=best, chosen={"layer": best.layer}, by_layer=by_layer)


def learn_lookback(data: Features) -> Fitted:
    ratios = _read_flat(data, LOOKBACK, "train")
    scale = standardize(ratios, LOOKBACK)
    validation = scale.apply(_read_flat(data, LOOKBACK, "validation"))
    path = fit_path(ratios, data.labels["train"])
    choice = choose_strength(path, validation, data.labels["validation"])
    probe = HeadsProbe(field=LOOKBACK, linear=scale.undo(choice.linear))
    return Fitted(scorer=probe, chosen={"C": choice.strength})


def has_tokens(data: Features, split: str) -> np.ndarray:
    return np.array([len(answer) > 0 for answer in data.read("token_logprobs", split)], bool)


def _at_layer(data: Features, layer: int, known: np.ndarray) -> AttentionScore:
    found = data.read(DIAGONAL, "train", layer=layer).sum(axis=1)[known]
    return AttentionScore(layer=layer, without=float(np.median(found)) if len(found) else 0.0)


def _read_flat(data: Features, field: str, split: str) -> np.ndarray:
    values = data.read(field, split)
    return values.reshape(len(values), -1)
