"""A detection method of your own, as a package. After `pip install ./examples/own_method`, every
`clew compare` runs it, and `clew compare --methods class_means,perplexity` selects it.

The probe is the difference of class means (Marks and Tegmark, arXiv 2310.06824).
"""

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import roc_auc_score

import clew


@dataclass(frozen=True)
class ClassMeans:
    """What is fitted. Since it is a dataclass with `fields`, it can be kept as a detector."""

    layer: int
    direction: np.ndarray
    fields = frozenset({"state_mean"})  # what `score` reads

    @property
    def parameters(self):
        return len(self.direction)

    @property
    def chosen(self):
        return {"layer": self.layer}

    def score(self, features, split):
        return features.read("state_mean", split, layer=self.layer) @ self.direction


def fit(features):
    """One direction per layer; the layer is chosen on validation."""
    probes = [fit_layer(features, layer) for layer in range(features.layers)]
    labels = features.labels["validation"]
    return max(probes, key=lambda one: roc_auc_score(labels, one.score(features, "validation")))


def fit_layer(features, layer):
    states, is_wrong = features.read("state_mean", "train", layer=layer), features.labels["train"]
    direction = states[is_wrong == 1].mean(axis=0) - states[is_wrong == 0].mean(axis=0)
    return ClassMeans(layer=layer, direction=direction)


METHOD = clew.DetectionMethod(
    name="class_means",
    title="Difference of class means",
    fit=fit,
    needs=["state_mean"],
    scorer=ClassMeans,
)
