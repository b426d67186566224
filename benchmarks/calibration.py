"""Calibration of the risk over five splits: expected calibration error in 10 bins of equal mass.

    python benchmarks/calibration.py --samples preprocessed_data
    python benchmarks/calibration.py --samples preprocessed_data --methods fusion,perplexity
    python benchmarks/calibration.py --samples preprocessed_data --answers 1500

The answers of a folder of "clew preprocess" are split again for every seed; a method is fitted on
train, calibrated on validation and measured on test. A finite test split has an error even if all
risks are right: the floor, simulated with labels drawn from the risks. Target: a mean of 0.05.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from clew.hallucination.detectors.probes.registry import PROBES
from clew.hallucination.samples.answers import AnswerFeatures
from clew.loading.splits import SPLIT_NAMES
from clew.metrics.calibration import PlattScale, expected_calibration_error
from clew.metrics.ranking import auroc

BINS, SEEDS, DRAWS = 10, 5, 200


class Resplit:
    """The answers of a folder with other splits. Fields are read once."""

    def __init__(self, data, shares, seed, most):
        self._data, self.fields, self.layers = data, data.fields, data.layers
        self._sizes = np.cumsum([0, *(len(data.labels[split]) for split in SPLIT_NAMES)])
        order = np.random.default_rng(seed).permutation(self._sizes[-1])[:most]
        ends = np.round(np.cumsum([0, *shares]) / sum(shares) * len(order)).astype(int)
        pairs = zip(SPLIT_NAMES, ends[:-1], ends[1:], strict=True)
        self._rows = {split: np.sort(order[start:end]) for split, start, end in pairs}
        labels = np.concatenate([data.labels[split] for split in SPLIT_NAMES])
        self.labels = {split: labels[rows] for split, rows in self._rows.items()}

    def read(self, field, split, *, layer=None):
        parts = [self._data.read(field, one, layer=layer) for one in SPLIT_NAMES]
        rows = self._rows[split]
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts)[rows]
        every = [value for part in parts for value in part]
        return [every[row] for row in rows]


def measure(labels, risks):
    return expected_calibration_error(labels, risks, bins=BINS)


def run(name, data, shares, seed, most=None):
    """(ECE, floor, AUROC) of a method on the test split of one seed."""
    split = Resplit(data, shares, seed, most)
    outcome = PROBES[name].run(split, seed=0)
    scale = PlattScale.fit(split.labels["validation"], outcome.validation)
    risks = scale.probabilities(outcome.test)
    generator = np.random.default_rng(seed)
    drawn = (generator.random((DRAWS, len(risks))) < risks).astype(np.int8)
    floor = float(np.mean([measure(labels, risks) for labels in drawn]))
    return measure(split.labels["test"], risks), floor, auroc(split.labels["test"], outcome.test)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--methods", default="fusion")
    parser.add_argument("--split", default="70/15/15", help="shares of train, validation, test")
    parser.add_argument("--answers", type=int, help="draw as many of them for every split")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    data, figures = AnswerFeatures(options.samples), {}
    shares = [float(part) for part in options.split.split("/")]
    for name in options.methods.split(","):
        rows = [run(name, data, shares, seed, options.answers) for seed in range(SEEDS)]
        ece, floor, area = np.mean(rows, axis=0)
        figures[name] = {"ece": ece, "floor": floor, "auroc": area, "seeds": rows}
        each = ", ".join(f"{row[0]:.3f}" for row in rows)
        print(f"{name}: ECE {ece:.3f} ({each}); floor {floor:.3f}; AUROC {area:.3f}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
