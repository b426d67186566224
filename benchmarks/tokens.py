"""How well single tokens are judged, and whether full token states pay.

    python benchmarks/tokens.py TRACES SAMPLES      samples of facts-spans, or of any questions
    python benchmarks/tokens.py TRACES SAMPLES --full      also full states, by passing again

The token probe from span labels (if there are any) and from answer labels by each way of learning,
beside the tokens' own probabilities: AUROC per token, recall at 5% false positives, and the AUROC
of the pooled answers. With --full, the same with all dimensions of the layers chosen instead of 64
projected numbers: the stored sequences pass through the model again.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from clew.hallucination.capture import load_model
from clew.hallucination.detectors.probes.tokens import (
    NODES,
    SPANS,
    Tokens,
    fit_token_probe,
    has_spans,
)
from clew.hallucination.samples.reading.answers import AnswerFeatures
from clew.hallucination.traces import TraceBatchLoader
from clew.metrics import auroc, bootstrap_auroc, expected_calibration_error, measure_groups

BATCH = 16
TITLES = {"inherit": "labels inherited", "max": "max pooling", "attention": "attention pooling"}


class FullStates:
    """The same answers, with all dimensions of the states in a few layers as their nodes."""

    def __init__(self, data, traces, layers):
        self.data, self.labels, self.fields = data, data.labels, data.fields
        self.kept, self.layers = layers, len(layers)
        self.states = _pass_again(traces, layers)

    def read(self, field, split, *, layer=None):
        if field != NODES:
            return self.data.read(field, split, layer=layer)
        ids = self.data.ids[split].tolist()
        return [self.states[number][layer].astype(np.float32) for number in ids]


@torch.no_grad()
def _pass_again(traces, layers):
    """float16 `[layers, answer tokens, dim]` of every trace."""
    model, _ = load_model("smollm2")
    rows = [
        (t["global_example_id"], t["tokens"].tolist(), int(t["prompt_length"]))
        for t in TraceBatchLoader(traces).iter_traces()
    ]
    rows.sort(key=lambda row: len(row[1]))
    states = {}
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        longest = max(len(ids) for _, ids, _ in some)
        batch = torch.zeros(len(some), longest, dtype=torch.long)
        for row, (_, ids, _) in enumerate(some):
            batch[row, : len(ids)] = torch.tensor(ids)
        found = model(batch, output_hidden_states=True).hidden_states
        for row, (number, ids, prompt) in enumerate(some):
            kept = [found[layer + 1][row, prompt : len(ids)] for layer in layers]
            states[number] = torch.stack(kept).half().numpy()
    return states


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
    parser.add_argument("traces", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--layers", type=int, nargs="*", help="of the full states")
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
    if given.full:
        chosen = given.layers or lines[0]["chosen"]["layers"]
        lines += run(FullStates(data, given.traces, chosen), f"full states of layers {chosen}")
    for line in lines:
        print(json.dumps(line, default=float))


if __name__ == "__main__":
    main()
