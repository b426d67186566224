"""What Ray costs on one machine: a capture by one worker against the plain command, and two workers
with one thread against one process with two.

python benchmarks/ray_overhead.py --questions 100
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

VARIANTS = {
    "plain, 1 thread": ("--threads", "1"),
    "Ray, 1 worker, 1 thread": ("--threads", "1", "--cluster", "ray", "--workers", "1"),
    "plain, 2 threads": ("--threads", "2"),
    "Ray, 2 workers, 1 thread each": ("--threads", "1", "--cluster", "ray", "--workers", "2"),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--questions", type=int, default=100)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--turns", type=int, default=2)
    every = range(1, len(VARIANTS) + 1)
    options.add_argument("--variants", type=int, nargs="+", choices=every, default=every)
    given = options.parse_args()
    print(f"{'':32}{'wall, s':>10}{'CPU, s':>10}")
    for turn in range(given.turns):
        for number in given.variants:
            name, words = [*VARIANTS.items()][number - 1]
            wall, cpu = measure(given.questions, given.model, words)
            print(f"{turn + 1} {name:30}{wall:10.1f}{cpu:10.1f}", flush=True)


def measure(questions: int, model: str, words: tuple[str, ...]) -> tuple[float, float]:
    """Wall and CPU seconds, those of all its processes together."""
    folder = Path(tempfile.mkdtemp(prefix="overhead-"))
    size = -(-questions // 4)
    command = [sys.executable, "-m", "clew", "extract", "-q", "--out", str(folder / "traces")]
    command += ["--model", model]
    command += ["--num-samples", str(questions), "--shard-size", str(size), "--device", "cpu"]
    began = time.monotonic()
    # Not on a cluster that happens to run here.
    process = subprocess.Popen([*command, *words], env={**os.environ, "RAY_ADDRESS": "local"})
    watch = Watch(process.pid)
    code = process.wait()
    wall = time.monotonic() - began
    watch.end()
    shutil.rmtree(folder)
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    return wall, watch.cpu_seconds


class Watch:
    """Sums up the CPU time of a process and all that it starts, by looking often."""

    def __init__(self, pid: int) -> None:
        self._root, self._seen = psutil.Process(pid), dict[tuple[int, float], float]()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def cpu_seconds(self) -> float:
        return sum(self._seen.values())

    def end(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.1):
            try:
                processes = [self._root, *self._root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for one in processes:
                self._look(one)

    def _look(self, process: psutil.Process) -> None:
        try:
            times = process.cpu_times()
            self._seen[process.pid, process.create_time()] = times.user + times.system
        except psutil.NoSuchProcess:
            return


if __name__ == "__main__":
    main()
