"""Memory of a capture: resident size after 100 traces and after 2,000, shards of 500.

python benchmarks/memory.py
"""

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

import psutil

from clew.base.progress import Note, WorkAdvanced, WorkStarted
from clew.hallucination.capture import ExtractConfig, extract


class MemoryWatch:
    """A reporter that notes the resident size as traces are written. What is done before the
    capture starts (fitting the basis) reports its own progress, which does not count."""

    def __init__(self):
        self.traces = 0
        self.samples = []
        self.is_capturing = False

    def __call__(self, event):
        if isinstance(event, Note | WorkStarted):
            self.is_capturing |= isinstance(event, WorkStarted)
            print(f"  clew: {event}")
        elif isinstance(event, WorkAdvanced) and self.is_capturing:
            self.traces += event.count
            self.samples.append((self.traces, psutil.Process().memory_info().rss))

    def near(self, traces, window=100):
        sizes = [size for count, size in self.samples if traces <= count < traces + window]
        return statistics.median(sizes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=int, default=2000)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    watch = MemoryWatch()
    try:
        config = ExtractConfig(
            out=folder / "store", num_samples=args.traces, generation_batch=50, max_new_tokens=20
        )
        extract(config, watch)
    finally:
        shutil.rmtree(folder)
    early, late = watch.near(100), watch.samples[-1][1]
    peak = max(size for _, size in watch.samples)
    print(f"resident after 100 traces:     {early / 1e6:8,.0f} MB")
    print(f"resident after {args.traces:,} traces:   {late / 1e6:8,.0f} MB")
    print(f"ratio {late / early:.3f}; highest {peak / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
