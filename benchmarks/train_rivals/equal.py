"""Fast paths change speed, not results: the same training, from the same seeds, in every way."""

import statistics
import tempfile
from pathlib import Path

import torch

from clew.engine import Classifier, PlanRequest, TrainConfig, fit
from clew.hallucination.detectors.networks.lstm import (
    GNNLSTMConfig,
    GNNLSTMDetector,
    GVAELSTMConfig,
    GVAELSTMDetector,
    LSTMConfig,
    LSTMDetector,
)

from .data import HardSamples, write_folder
from .speed import open_files

COUNTS = (2000, 500, 1000)
SIZES = {"input_dim": 64, "lstm_hidden": 32}
GRAPH_SIZES = {**SIZES, "node_dim": 64, "gnn_hidden": 32}
SMALL = {
    "lstm": lambda: LSTMDetector(LSTMConfig(**SIZES)),
    "gnn_det": lambda: GNNLSTMDetector(GNNLSTMConfig(**GRAPH_SIZES)),
    "gvae": lambda: GVAELSTMDetector(GVAELSTMConfig(**GRAPH_SIZES)),
}
EAGER = {"precision": "fp32", "compile": False}
CPU_WAYS = {
    "fp32, eager": EAGER,
    "bf16": {**EAGER, "precision": "bf16"},
    "compiled": {**EAGER, "compile": True},
}
CUDA_WAYS = {
    "fp32, eager": {**EAGER, "cuda_graph": False},
    "bf16": {"precision": "bf16", "compile": False, "cuda_graph": False},
    "fp16": {"precision": "fp16", "compile": False, "cuda_graph": False},
    "compiled": {**EAGER, "compile": True, "cuda_graph": False},
    "CUDA graph, fp32": {**EAGER, "cuda_graph": True},
    "CUDA graph, bf16": {"precision": "bf16", "compile": False, "cuda_graph": True},
}


def run(args, report):
    counts = tuple(count // 20 for count in COUNTS) if args.quick else COUNTS
    report.title(f"AUROC on {counts[2]:,} test samples by way, {args.repeats} seeds, {args.device}")
    folder = args.data / "hard"
    write_folder(folder, counts, HardSamples)
    ways = CPU_WAYS if args.device == "cpu" else CUDA_WAYS
    if args.quick:
        ways = {text: way for text, way in ways.items() if not way["compile"]}
    for name in args.network:
        for text, way in ways.items():
            seeds = range(1 if way["compile"] else args.repeats)  # compiling takes a minute a run
            found = [train(args, name, folder, way, seed) for seed in seeds]
            first, mean = found[0], statistics.mean(found)
            spread = f"{min(found):.4f} to {max(found):.4f}"
            report.add("equal", f"{name}: {text}", seed_0=first, mean=mean, from_to=spread)


def train(args, name, folder, way, seed):
    torch.manual_seed(seed)
    model = Classifier(SMALL[name]())
    opened = open_files(folder, name)

    with tempfile.TemporaryDirectory() as out:
        result = fit(
            model,
            opened("train"),
            opened("validation"),
            test=opened("test"),
            config=TrainConfig(epochs=1 if args.quick else 8, patience=None, seed=seed),
            request=PlanRequest(device=args.device, batch_size=32, calibrate=False, **way),
            output_dir=Path(out),
        )
    return result.test["auroc"]
