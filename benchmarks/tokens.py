"""How well single tokens are judged, and whether full states would pay.

    python benchmarks/tokens.py SAMPLES      samples of facts-spans, or of any questions
        --seen 500                           fit on the first 500 answers, test on all later ones
        --traces STORE --spans SPANS.csv     beside the kind of fact, without the model

The token probe from span labels (if there are any) and from answer labels by each way of learning,
beside the tokens' own probabilities: AUROC per token in spans, recall at 5% false positives, ECE of
all tokens, and the AUROC of the pooled answers; of the answers that hold both correct and
hallucinated spans, the AUROC of their tokens, and within each of them. Then linear probes on states
of all dimensions and on 64 numbers of them.
"""

import argparse
import collections
import csv
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
from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.traces import TraceBatchLoader
from clew.metrics.calibration import expected_calibration_error
from clew.metrics.measures import measure_groups
from clew.metrics.ranking import auroc, bootstrap_auroc

TITLES = {"inherit": "labels inherited", "max": "max pooling", "attention": "attention pooling"}


class Later:
    """Answers below number `seen` for fitting, those of their test split included; all others for
    the test."""

    def __init__(self, data, seen):
        self._data, self.layers, self.fields = data, data.layers, data.fields
        self._places = {"train": [], "validation": [], "test": []}
        for split, ids in data.ids.items():
            for row, number in enumerate(ids.tolist()):
                to = "test" if number >= seen else split
                to = "train" if number < seen and split == "test" else to
                self._places[to].append((split, row))
        self.labels = {split: np.array(self._take(data.labels, split)) for split in self._places}
        self.ids = {split: np.array(self._take(data.ids, split)) for split in self._places}

    def _take(self, every, split):
        return [every[of][row] for of, row in self._places[split]]

    def read(self, field, split, *, layer=None):
        every = {of: self._data.read(field, of, layer=layer) for of in self._data.labels}
        found = self._take(every, split)
        return np.stack(found) if isinstance(every["test"], np.ndarray) else found

    def bytes_of(self, field):
        return self._data.bytes_of(field)


class Parts:
    """Which fact a token states: a baseline that does not need the model."""

    def __init__(self, traces, spans):
        self._spans = collections.defaultdict(list)
        with spans.open() as file:
            for row in csv.DictReader(file):
                span = int(row["start"]), int(row["end"]), row["part"]
                self._spans[int(row["global_example_id"])].append(span)
        store = TraceBatchLoader(traces).iter_traces()
        self._ends = {one["global_example_id"]: np.array(one["token_ends"]) for one in store}

    def measure(self, data):
        """The share of hallucinated training tokens of a part is the score of its tokens."""
        train, test = Tokens(data, "train"), Tokens(data, "test")
        named, asked = (self._name(data, of) for of in ("train", "test"))
        known = train.spans >= 0
        rates = {name: train.spans[known & (named == name)].mean() for name in set(named[known])}
        scores = np.array([rates.get(name, 0.5) for name in asked])
        return {"title": "which fact it is"} | measure_tokens(test, scores)

    def _name(self, data, split):
        answers = []
        for number in data.ids[split][Tokens(data, split).rows].tolist():
            ends = self._ends[number]
            starts = np.concatenate([[0], ends])[:-1]
            names = np.full(len(ends), "", object)
            for start, end, part in self._spans[number]:
                names[(starts < end) & (ends > start)] = part
            answers.append(names)
        return np.concatenate(answers)


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
    line |= measure_mixed(test.spans[known], scores[known], answers)
    return line | (measure_calibration(test, scores) if is_probe else {})


def measure_mixed(labels, scores, answers):
    """Of the answers with tokens of both classes: whether the risk points at the error. All their
    tokens together; and within each answer, where what differs between answers does not help: the
    share of pairs of a hallucinated and a correct token in which the hallucinated one has the
    higher risk."""
    pairs = []
    for answer in np.unique(answers):
        wrong, right = (scores[(answers == answer) & (labels == one)] for one in (1, 0))
        if len(wrong) and len(right):
            above = wrong[:, None] - right
            pairs.append((answer, (above > 0).sum() + (above == 0).sum() / 2, above.size))
    if not pairs:
        return {}
    is_mixed = np.isin(answers, [answer for answer, _, _ in pairs])
    found = measure_groups(labels[is_mixed], scores[is_mixed], answers[is_mixed])
    won = np.array([one[1:] for one in pairs], float)
    drawn = won[np.random.default_rng(0).integers(len(won), size=(2000, len(won)))].sum(1)
    return {
        "mixed_answers": len(pairs),
        "mixed_auroc": found.auroc,
        "mixed_auroc_ci": found.auroc_ci,
        "within_auroc": won[:, 0].sum() / won[:, 1].sum(),
        "within_auroc_ci": np.quantile(drawn[..., 0] / drawn[..., 1], [0.025, 0.975]).tolist(),
    }


def measure_calibration(test, logits):
    """Of all tokens but the unsure ones; those around spans are not hallucinated."""
    risks = 1 / (1 + np.exp(-logits.astype(float)))
    labels, is_sure = test.spans > 0, test.spans != -1
    answers = np.split(np.arange(len(labels)), test.starts[1:])
    random = np.random.default_rng(0)

    def ece(rows):
        rows = rows[is_sure[rows]]
        return expected_calibration_error(labels[rows], risks[rows])

    drawn = random.integers(len(answers), size=(500, len(answers)))
    found = [ece(np.concatenate([answers[one] for one in draw])) for draw in drawn]
    return {
        "token_ece": ece(np.arange(len(labels))),
        "token_ece_ci": np.quantile(found, [0.025, 0.975]).tolist(),
        "mean_risk": risks[is_sure].mean(),
        "rate": labels[is_sure].mean(),
        "mean_risk_outside": risks[test.spans == -2].mean(),
    }


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
    parser.add_argument("--seen", type=int)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--spans", type=Path)
    given = parser.parse_args()
    data = AnswerFeatures(given.samples)
    if given.seen is not None:
        data = Later(data, given.seen)
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
        if given.traces and given.spans:
            lines.append(Parts(given.traces, given.spans).measure(data))
    lines += compare_full(data)
    for line in lines:
        print(json.dumps(line, default=float))


if __name__ == "__main__":
    main()
