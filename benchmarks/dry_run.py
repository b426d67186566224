"""How far `clew extract --dry-run` is off: predict a capture from 50 questions, then do it.

    python benchmarks/dry_run.py --questions 2000 --threads 1

Where other processes share the cores, compare the processor time: it depends less on them.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import clew
from clew.base.progress import WorkEnded, WorkStarted


class Stopwatch:
    """A reporter that times the capture proper, on the clock and on the processor."""

    def __call__(self, event):
        if isinstance(event, WorkStarted):
            self.started = time.perf_counter(), time.process_time()
        elif isinstance(event, WorkEnded) and hasattr(self, "started"):
            wall, cpu = self.started
            self.wall, self.cpu = time.perf_counter() - wall, time.process_time() - cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--set", default="facts")
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    model = clew.load_model(args.model)
    settings = {
        "model": model,
        "questions": args.set,
        "num_samples": args.questions,
        "threads": args.threads,
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "traces"
        watch = Stopwatch()
        plan = clew.extract(**settings, out=out, dry_run=True, reporter=watch)
        predicted = plan.seconds - plan.startup_seconds
        predicted_cpu = predicted * watch.cpu / watch.wall
        print(json.dumps(plan.as_dict(), indent=1), flush=True)
        watch = Stopwatch()
        traces = clew.extract(**settings, out=out, reporter=watch)
        print(f"{'':20}{'predicted':>12}{'measured':>12}{'error':>8}")
        for name, before, after in (
            ("seconds", predicted, watch.wall),
            ("processor seconds", predicted_cpu, watch.cpu),
            ("bytes", plan.bytes, traces.manifest.bytes),
            ("tokens", plan.tokens, sum(len(trace["tokens"]) for trace in traces.iter_traces())),
        ):
            print(f"{name:20}{before:12,.0f}{after:12,.0f}{before / after - 1:+8.1%}")


if __name__ == "__main__":
    main()
