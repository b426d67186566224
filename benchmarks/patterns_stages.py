"""Where the time of a training on photos goes, from the start of Python to the report.

    python benchmarks/patterns_stages.py --data photos
    python benchmarks/patterns_stages.py --data photos --profile     the slowest functions, too
    python benchmarks/patterns_stages.py --data photos --set image_size=128 --set rand_augment=2,9

Prints the seconds since the start at every event, and the result. A second run into the same
folder would only read the first one's results: each starts over.
"""

import argparse
import cProfile
import pstats
import tempfile
import time
from pathlib import Path

from detection import write_figures

STARTED = time.perf_counter()
QUIET = ("WorkAdvanced", "TrainingProgress", "EpochEnded")
SLOWEST = 60


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="one folder per class")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--figures", type=Path, help="JSON file to write the accuracy to")
    args = parser.parse_args()
    settings = dict(map(read_setting, args.set))
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:
        if args.profile:
            profile.enable()
        result = train(args.data, Path(folder), settings)
        profile.disable()
        describe(result.raw)
        if args.figures:
            write_accuracy(args.figures, result.raw)
    if args.profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(SLOWEST)


def read_setting(text):
    name, _, value = text.partition("=")
    known = {"False": False, "True": True}
    return name, known.get(value, int(value) if value.isdigit() else value)


def train(data, folder, settings):
    from clew import patterns

    tell("imported")
    epochs = []

    def report(event):
        if type(event).__name__ == "EpochEnded" and not epochs:
            epochs.append(event)
            tell("first epoch")
        if type(event).__name__ not in QUIET:
            tell(f"{type(event).__name__} {event}"[:160])

    result = patterns.train(data, out=folder / "out", reporter=report, **settings)
    tell("done")
    return result


def tell(text):
    print(f"{time.perf_counter() - STARTED:7.1f} s  {text}", flush=True)


def describe(raw):
    low, high = raw["test_accuracy_ci"]
    print(
        f"test accuracy {raw['test_accuracy']:.1%} [{low:.1%}, {high:.1%}] of "
        f"{raw['test_photos']:,}, validation {raw['val_accuracy']:.1%}; {raw['image_size']} "
        f"pixels, {raw['epochs_run']} epochs in {raw['seconds']:.1f} s, "
        f"{raw['images_per_second']:,.0f} images/s; plan measured in "
        f"{raw['plan']['calibration_seconds']:.1f} s; known test photos marked as unknown: "
        f"{(raw['unknown'] or {}).get('test_marked')}; {raw['augment']}"
    )


def write_accuracy(path, raw):
    splits = ("train", "validation", "test")
    photos = sum(one[split] for one in raw["per_class"] for split in splits)
    figures = {name: raw[name] for name in ("test_photos", "test_accuracy", "test_accuracy_ci")}
    write_figures(path, {"photos": photos, **figures})


if __name__ == "__main__":
    main()
