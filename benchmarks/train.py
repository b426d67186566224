"""Training speed of clew's engine beside the plain way, in one run: same networks, same data.

    python benchmarks/train.py                        every part; on a GPU when there is one
    python benchmarks/train.py --part epoch           whole epochs, from the page cache on
    python benchmarks/train.py --part step            the step alone, on a batch that lies ready
    python benchmarks/train.py --part equal           fast paths end where the slow one ends
    python benchmarks/train.py --part memory          gradient checkpointing; RAM over epochs
    python benchmarks/train.py --quick                little data, to see that all of it runs

The plain way: `torch.load` a sample, PyG's collate a layer, a Python loop over the layers, single
precision, Adam. 32 layers, states of 4,096; graphs of 60 tokens, 64 features, 16 edges a token.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from train_rivals import equal, memory, speed
from train_rivals.report import Report

PARTS = {
    "step": speed.run_steps,
    "epoch": speed.run_epochs,
    "equal": equal.run,
    "memory": memory.run,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="[default: all]")
    parser.add_argument("--network", choices=speed.NETWORKS, action="append", help="[default: all]")
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--samples", type=int, help="to train on [default: 11,000; CPU: 1,024]")
    parser.add_argument("--plain-samples", type=int, help="[default: 512; CPU: as --samples]")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", type=Path, help="keep the data here [default: a fresh folder]")
    parser.add_argument("--quick", action="store_true", help="little data, figures mean nothing")
    args = parser.parse_args()
    if args.quick:
        args.samples, args.batch_size, args.repeats = 16, 8, 1
    args.epochs = 2 if args.quick else 12 if args.device == "cuda" else 6
    args.samples = args.samples or (11_000 if args.device == "cuda" else 1024)
    args.plain_samples = args.plain_samples or (512 if args.device == "cuda" else args.samples)
    args.network = args.network or list(speed.NETWORKS)
    report = Report(args)
    with tempfile.TemporaryDirectory(prefix="clew-train-") as fresh:
        args.data = args.data or Path(fresh)
        for part in args.part or PARTS:
            PARTS[part](args, report)
    report.save()


if __name__ == "__main__":
    main()
