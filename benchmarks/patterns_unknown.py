"""How well a photo classifier recognizes photos of none of its classes: trained without some
classes, and asked about their photos.

    python benchmarks/patterns_unknown.py --data sign-digits --hold-out 8 9
    python benchmarks/patterns_unknown.py --data sign-digits --hold-out 8 9 --hold-out 0 1
    python benchmarks/patterns_unknown.py --data sign-digits --hold-out 8 9 --network small

Known photos are those of the test split. The network has seen no photo of the held-out classes,
unlike in the report of a run, where only the distances are without them.
"""

import argparse
import csv
import tempfile
from pathlib import Path

import numpy as np

from clew import patterns
from clew.base.progress import ignore_event
from clew.metrics.ranking import auroc, bootstrap_auroc

MARKED = 0.05


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="one folder per class")
    parser.add_argument("--hold-out", nargs="+", action="append", required=True, metavar="CLASS")
    parser.add_argument("--network")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--image-size", type=int)
    args = parser.parse_args()
    for classes in args.hold_out:
        with tempfile.TemporaryDirectory() as folder:
            measure(args, classes, Path(folder))


def measure(args, classes, folder):
    data = folder / "known"
    data.mkdir()
    for each in sorted(args.data.iterdir()):
        if each.is_dir() and each.name not in classes:
            (data / each.name).symlink_to(each.resolve(), target_is_directory=True)
    settings = {"network": args.network, "epochs": args.epochs, "image_size": args.image_size}
    result = patterns.train(
        data, out=folder / "out", minutes=args.minutes, reporter=ignore_event, **settings
    )
    model = result.load()
    known = ask(model, [data / name for name in read_test(result.path)])
    unknown = ask(model, [args.data / name for name in classes])
    report(result, classes, known, unknown)


def read_test(out):
    with (out / "splits.csv").open(encoding="utf-8", newline="") as file:
        return [row["name"] for row in csv.DictReader(file) if row["split"] == "test"]


def ask(model, photos):
    return np.array([one.typicality for one in model.predict(photos)], np.float64)


def report(result, classes, known, unknown):
    labels = np.repeat([0, 1], [len(known), len(unknown)])
    scores = -np.concatenate([known, unknown])
    low, high = bootstrap_auroc(labels, scores)
    inside = result.raw["unknown"]["auroc"]  # None for so few classes that none can be held out
    print(
        f"held out {', '.join(classes)}: AUROC {auroc(labels, scores):.3f} [{low:.3f}, "
        f"{high:.3f}]; test accuracy {result.accuracy:.1%}; marked "
        f"at {MARKED}: {(known < MARKED).mean():.1%} of "
        f"{len(known):,} known, {(unknown < MARKED).mean():.1%} of {len(unknown):,} unknown "
        f"photos; the report's own estimate "
        f"{'none' if inside is None else f'{inside:.3f}'}",
        flush=True,
    )


if __name__ == "__main__":
    main()
