"""How well single tokens are judged, and whether full states would pay.

    python benchmarks/tokens.py SAMPLES      samples of facts-spans, or of any questions

The token probe from span labels (if there are any) and from answer labels by each way of learning,
beside the tokens' own probabilities: AUROC per token, recall at 5% false positives, and the AUROC
of the pooled answers. Then linear probes on states of all dimensions and on 64 numbers of them.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from clew.hallucination.detectors.probes.fitting import choose_strength, fit_path, standardize
from clew.hallucination.detectors.probes.tokens import (
    NODES,
    SPANS,
    Tokens,
    fit_token_probe,
    has_spans,
)
from clew.hallucination.samples.reading.answers import AnswerFeatures
from clew.metrics import auroc, bootstrap_auroc, expected_calibration_error, measure_groups

TITLES = {"inherit": "labels inherited", "max": "max pooling", "attention": "attention pooling"}


def compare_full(data):
    """Linear probes on states of all dimensions beside the same states projected to 64 numbers, for
    the two states that stores keep in full: the last token's, and the mean of the answer's."""

    def field(name):
        return lambda split, layer: data.read(name, split, layer=layer)

    readers = {
        "last token, all dimensions": field("sequence"),
        "last token, 64 numbers": lambda split, layer: last_nodes(data, split, layer),
        "mean, all dimensions": field("state_mean"),
        "mean, 64 numbers": field("node_mean"),
    }
    for title, read in readers.items():
        auroc_, layer, choice, scale = max(
            (fit_layer(data, read, layer) for layer in range(0, data.layers, 2)),
            key=lambda one: one[0],
        )
        scores = choice.linear.score(scale.apply(read("test", layer)))
        line = {"title": title, "layer": layer, "val_auroc": auroc_}
        yield line | {"test_auroc": auroc(data.labels["test"], scores)}


def last_nodes(data, split, layer):
    nodes = data.read(NODES, split, layer=layer)
    width = max(answer.shape[1] for answer in nodes)
    return np.stack([one[-1] if len(one) else np.zeros(width, np.float32) for one in nodes])


def fit_layer(data, read, layer):
    states = read("train", layer)
    scale = standardize(states, "the states")
    path = fit_path(states, data.labels["train"])
    choice = choose_strength(
        path, scale.apply(read("validation", layer)), data.labels["validation"]
    )
    return choice.auroc, layer, choice, scale


def measure(title, data, fitted, seconds):
    """A line: the fitted probe on the test split, per answer and per token."""
    probe, test = fitted.scorer.probe, Tokens(data, "test")
    matrix = test.read(probe.layers)
    logits = probe.logits(matrix)
    scores = fitted.score(data, "test")
    line = {
        "title": title,
        "chosen": fitted.chosen,
        "inputs": len(probe.weights),
        "fit_seconds": round(seconds, 2),
        "answer_auroc": auroc(data.labels["test"], scores),
        "answer_auroc_ci": bootstrap_auroc(data.labels["test"], scores),
    }
    return line | measure_tokens(test, logits, is_probe=True)


def measure_tokens(test, scores, *, is_probe=False):
    if test.spans is None:
        return {}
    known = test.spans >= 0
    answers = test.per_token(np.arange(len(test.counts)))[known]
    found = measure_groups(test.spans[known], scores[known], answers)
    line = {
        "token_auroc": found.auroc,
        "token_auroc_ci": found.auroc_ci,
        "recall": found.recall,
        "recall_ci": found.recall_ci,
    }
    if is_probe:
        risks = 1 / (1 + np.exp(-scores[known].astype(float)))
        line["token_ece"] = expected_calibration_error(test.spans[known], risks, bins=10)
    return line


def fit(data, **options):
    start = time.perf_counter()
    fitted = fit_token_probe(data, **options)
    return fitted, time.perf_counter() - start


def run(data, name):
    lines = []
    if has_spans(data):
        lines.append(measure(f"{name}, from span labels", data, *fit(data, spans=True)))
    lines.append(measure(f"{name}, from answer labels", data, *fit(data, spans=False)))
    for way, title in TITLES.items():
        found = fit(data, spans=False, ways=(way,))
        lines.append(measure(f"{name}, from answer labels, {title}", data, *found))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path)
    given = parser.parse_args()
    data = AnswerFeatures(given.samples)
    counts = {split: len(labels) for split, labels in data.labels.items()}
    print(json.dumps({"answers": counts, "bytes": data.bytes_of("node_tokens")}))
    lines = run(data, "64 numbers")
    if SPANS in data.fields:
        test = Tokens(data, "test")
        columns = test.read([])
        for title, scores in (
            ("token log-probability", -columns[:, 0]),
            ("token entropy", columns[:, 1]),
        ):
            lines.append({"title": title} | measure_tokens(test, scores))
    lines += compare_full(data)
    for line in lines:
        print(json.dumps(line, default=float))


if __name__ == "__main__":
    main()
