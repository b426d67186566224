"""Runs contestants in fresh processes, round after round, so that noise hits all of them alike."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from . import find_version
from .child import RESULT, TIMED, WEIGHED
from .pss import PssWatch

# The same for all: a worker or thread is one core's worth of work, and nothing is looked up online.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(kw_only=True)
class Row:
    """What was measured of one contestant: samples a second of every epoch of every round."""

    name: str
    order: str
    version: str | None = ""
    rates: list[float] = field(default_factory=list)
    pss: int = 0
    problem: str = ""

    @property
    def median(self):
        return statistics.median(self.rates) if self.rates else None


def run_job(**job):
    """Runs one job; returns its result (None for a preparation) and its highest PSS in bytes."""
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", here.name, json.dumps(job, default=str)],
            cwd=here.parent,
            env=os.environ | ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        watch = PssWatch(process.pid)
        result = follow(process, watch)
        peak = watch.stop()
        if process.wait() != 0:
            errors.seek(0)
            raise RuntimeError(last_line(errors.read()))
    return result, peak


def follow(process, watch):
    result = None
    for line in process.stdout:
        if line.startswith(TIMED):
            watch.pause()
        elif line.startswith(WEIGHED):
            watch.resume()
        elif line.startswith(RESULT):
            result = json.loads(line.removeprefix(RESULT))
    return result


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it ended without a word"


def prepare(entries, orders, do, data, formats, say):
    """Lets each contestant write its own format once; returns a row a contestant and order."""
    rows = []
    for name, (_, _, package) in entries.items():
        version, problem = find_version(package), "not installed"
        if version is not None:
            problem = write_format(name, do, data, formats, say)
        rows += [Row(name=name, order=o, version=version, problem=problem) for o in orders]
    return rows


def write_format(name, do, data, formats, say):
    """What went wrong, or nothing; a format that is there already is used as it is."""
    folder, done = formats / name, formats / f"{name}.done"
    if done.exists():
        return ""
    say(f"{name}: writing its format")
    shutil.rmtree(folder, ignore_errors=True)
    formats.mkdir(parents=True, exist_ok=True)
    try:
        run_job(do=do, name=name, data=data, folder=folder)
    except RuntimeError as error:
        return f"failed: {error}"
    done.touch()
    return ""


def run_rounds(rows, repeats, make_job, say):
    """Adds `repeats` measurements to each row, all rows in turn, each in a fresh process."""
    for number in range(repeats):
        for row in rows:
            if row.problem:
                continue
            try:
                result, pss = run_job(**make_job(row))
            except RuntimeError as error:
                row.problem = f"failed: {error}"
                continue
            row.rates += result["rates"]
            row.pss = max(row.pss, pss)
            say(f"round {number + 1}: {row.name} {row.order} {result['median']:,.0f} samples/s")
