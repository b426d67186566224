"""Steps alone, and whole epochs."""

import statistics
import tempfile
import time
from pathlib import Path

import torch

from clew.datasets import (
    Loader,
    PreprocessedGNNMapDataset,
    PreprocessedLSTMMapDataset,
    ResidentSamples,
)
from clew.engine import Classifier, HardwarePlan, PlanRequest, TrainConfig, fit
from clew.engine.feed import move
from clew.engine.processes import start_fabric
from clew.engine.setup import build_optimizer
from clew.engine.step import build_step
from clew.hallucination.detectors.networks.lstm import (
    GNNLSTMConfig,
    GNNLSTMDetector,
    GVAELSTMConfig,
    GVAELSTMDetector,
    LSTMConfig,
    LSTMDetector,
)
from clew.hallucination.detectors.training.samples import DetectorSamples, PreprocessedData

from .data import DIM, write_files, write_folder
from .plain import PlainRun

SIZES = {"input_dim": DIM}
GRAPH_SIZES = {**SIZES, "node_dim": 64}
NETWORKS = {
    "lstm": lambda: LSTMDetector(LSTMConfig(**SIZES)),
    "gnn_det": lambda: GNNLSTMDetector(GNNLSTMConfig(**GRAPH_SIZES)),
    "gvae": lambda: GVAELSTMDetector(GVAELSTMConfig(**GRAPH_SIZES)),
}
WARM_UP, STEPS, SECONDS = 5, 200, 2.0


def open_dataset(folder, name, split):
    if name == "lstm":
        return PreprocessedLSTMMapDataset(folder, split=split)
    return PreprocessedGNNMapDataset(folder, split=split, with_sequence=True, flat=True)


def build(name, seed=0):
    torch.manual_seed(seed)
    return Classifier(NETWORKS[name]())


def prepare(args):
    folder, files = args.data / f"samples_{args.samples}", args.data / "files"
    write_folder(folder, (args.samples, *([16, 16] if args.quick else [256, 256])))
    write_files(files, args.plain_samples)
    return folder, files


def run_steps(args, report):
    report.title(f"the step alone, batch of {args.batch_size} and more, on {args.device}")
    folder, files = prepare(args)
    fabric = start_fabric(args.device)
    for name in args.network:
        plain = time_plain_step(args, name, files)
        report.add("step", f"{name}: plain", batch=args.batch_size, per_second=plain)
        sizes = (32, 256, 1024) if args.device == "cuda" else (args.batch_size,)
        for size in sizes:
            for way in ways(args.device):
                plan = HardwarePlan(device=args.device, batch_size=size, **way)
                rate = time_step(name, folder, plan, fabric)
                text = f"{name}: clew, " + ", ".join(map(str, way.values()))
                text = text.replace("True", "CUDA graph").replace(", False", "")
                report.add("step", text, batch=size, per_second=rate, times_plain=rate / plain)


def ways(device):
    if device == "cpu":
        return [{"precision": "fp32"}, {"precision": "bf16"}]
    return [
        {"precision": precision, "cuda_graph": graph}
        for graph in (False, True)
        for precision in ("fp32", "bf16")
    ]


def time_plain_step(args, name, files):
    run = open_plain(args, name, files)
    batch = next(iter(run.loader))
    return args.batch_size / time_calls(lambda: run.step(batch), args.device)


def time_step(name, folder, plan, fabric):
    model = build(name).to(fabric.device)
    loader = Loader(open_dataset(folder, name, "train"), plan.batch_size, shuffle=True)
    batch = move(next(iter(loader)), fabric.device)
    optimizer = build_optimizer(model, TrainConfig(), lr=1e-3, capturable=plan.cuda_graph)
    step = build_step(model, plan.variant, optimizer, fabric)
    return plan.batch_size / time_calls(lambda: step.run([batch], 1e-3), plan.device)


def time_calls(call, device):
    """Seconds a call, the median of three rounds."""
    for _ in range(WARM_UP):
        call()
    rounds = []
    for _ in range(3):
        synchronize(device)
        start, calls = time.perf_counter(), 0
        while calls < STEPS and time.perf_counter() - start < SECONDS / 3:
            call()
            calls += 1
        synchronize(device)
        rounds.append((time.perf_counter() - start) / calls)
    return statistics.median(rounds)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def run_epochs(args, report):
    report.title(f"whole epochs of {args.samples:,}, from the page cache, on {args.device}")
    folder, files = prepare(args)
    cuda = args.device == "cuda"
    for name in args.network:
        ways = {"from the files": (open_files, args.batch_size)}
        if cuda:
            ways["on the GPU"] = (open_resident, args.batch_size)
            ways["on the GPU, the plan's batch"] = (open_resident, None)
            tell_reading_in(report, name, folder)
        plain = {f"{name}: plain": open_plain(args, name, files)}
        if name == "lstm":
            plain["lstm: plain, without projection"] = open_plain(args, "older lstm", files)
        plain_rates = {text: [] for text in plain}
        rows = {text: [] for text in ways}
        for _ in range(args.repeats):
            for text, run in plain.items():
                plain_rates[text].append(args.plain_samples / run.time_epoch()[0])
            for text, (opener, size) in ways.items():
                rows[text].append(train(args, name, opener(folder, name), size))
        for text, rates in plain_rates.items():
            spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
            figures = {"batch": args.batch_size, "per_second": statistics.median(rates)}
            report.add("epoch", text, **figures, from_to=spread)
        usual = statistics.median(plain_rates[f"{name}: plain"])
        for text, runs in rows.items():
            tell_runs(report, f"{name}: clew, {text}", runs, usual)


def open_plain(args, name, files):
    return PlainRun(name, files, args.plain_samples, args.batch_size, args.device)


def train(args, name, opened, batch_size):
    """A whole run; gives the result, whose history has a row an epoch."""
    with tempfile.TemporaryDirectory() as out:
        return fit(
            build(name),
            opened("train"),
            opened("validation"),
            config=TrainConfig(epochs=args.epochs, patience=None),
            request=PlanRequest(device=args.device, batch_size=batch_size),
            output_dir=Path(out),
        )


def open_files(folder, name):
    """Every batch from the page cache."""
    return lambda split: lambda settings: open_loader(open_dataset(folder, name, split), settings)


def open_resident(folder, name):
    """As `clew train` does it: samples that fit are read to the GPU once."""
    kind = "sequences" if name == "lstm" else "graphs"
    return DetectorSamples(PreprocessedData(folder=folder), kind).open_later


def tell_reading_in(report, name, folder):
    dataset = open_dataset(folder, name, "train")
    torch.cuda.synchronize()
    start = time.perf_counter()
    samples = ResidentSamples(dataset, torch.device("cuda"), num_workers=8)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    rate = len(samples) / seconds
    report.add("epoch", f"{name}: reading to the GPU", seconds=seconds, per_second=rate)


def open_loader(dataset, settings):
    return Loader(
        dataset,
        settings.batch_size,
        shuffle=settings.shuffle,
        seed=settings.seed,
        num_workers=settings.num_workers,
        pin_memory=settings.pin_memory,
        prefetch_factor=settings.prefetch_factor,
        persistent_workers=settings.persistent_workers,
        max_cache_batches=settings.max_cache_batches,
    )


def tell_runs(report, text, runs, plain):
    rates = [row["samples_per_second"] for run in runs for row in run.history[1:]]
    waits = [row["data_wait_share"] for run in runs for row in run.history[1:]]
    plan = runs[-1].plan
    way = f"{plan.precision}{', CUDA graph' if plan.cuda_graph else ''}"
    report.add(
        "epoch",
        text,
        batch=plan.batch_size,
        per_second=statistics.median(rates),
        from_to=f"{min(rates):,.0f} to {max(rates):,.0f}",
        times_plain=statistics.median(rates) / plain,
        waits=f"{statistics.median(waits):.1%}",
        way=way + (", compiled" if plan.compile else ""),
        calibration_seconds=plan.calibration_seconds,
    )
