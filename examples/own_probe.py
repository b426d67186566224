"""Fit your own probe with scikit-learn on what clew captured.

Usage: python examples/own_probe.py preprocessed_data
"""

import sys

from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from clew.datasets import AnswerFeatures

features = AnswerFeatures(sys.argv[1] if len(sys.argv) > 1 else "preprocessed_data")
labels = features.labels  # 1 is hallucinated


def fit(layer):
    """Logistic regression on the last answer token's hidden state."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    return probe.fit(features.read("sequence", "train", layer=layer), labels["train"])


def measure(probe, layer, split):
    risk = probe.predict_proba(features.read("sequence", split, layer=layer))[:, 1]
    return roc_auc_score(labels[split], risk)


probes = {layer: fit(layer) for layer in range(features.layers)}
# Choose on validation; use the test split only for the final evaluation.
best = max(probes, key=lambda layer: measure(probes[layer], layer, "validation"))
print(f"layer {best}: test AUROC {measure(probes[best], best, 'test'):.3f}")
