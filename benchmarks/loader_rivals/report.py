"""Tables, bars and the JSON file of a run."""

import json
import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass

import psutil
import torch
from rich.console import Console
from rich.table import Table

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Something clew promises: `value` at least `least`, or at most where `at_most` is set."""

    promise: str
    value: float | None
    least: float
    unit: str = "times"
    at_most: bool = False

    @property
    def met(self):
        if self.value is None:
            return None
        return self.value <= self.least if self.at_most else self.value >= self.least

    def __str__(self):
        side = "at most" if self.at_most else "at least"
        bound = f"{side} {format_value(self.least, self.unit)}"
        if self.met is None:
            return f"not measured: {self.promise} ({bound})"
        verdict = "met" if self.met else "NOT MET"
        return f"{verdict}: {self.promise}: {format_value(self.value, self.unit)} ({bound})"


def format_value(value, unit):
    if unit == "share":
        return f"{value:.0%}"
    return f"{value:,.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"


def find(rows, name, order):
    """The row of that contestant if it was measured, else None."""
    return next((r for r in rows if (r.name, r.order) == (name, order) and r.rates), None)


def ratio(rows, name, other, order):
    """How many times faster `name` is than `other`; None where one was not measured."""
    one, two = find(rows, name, order), find(rows, other, order)
    return one.median / two.median if one and two else None


def find_limit(rows):
    """Samples a second that two threads copy, over all rounds; None where not measured."""
    rates = [rate for row in rows if row.name == "memcpy" for rate in row.rates]
    return statistics.median(rates) if rates else None


def print_rows(title, rows, baseline):
    """One line a contestant; those that could not run say why."""
    table = Table(title=title, title_justify="left")
    table.add_column("loader", no_wrap=True)
    for column in (
        "order",
        "samples/s",
        "spread",
        f"x {baseline}",
        "clew is x",
        "of memcpy",
        "PSS",
    ):
        table.add_column(column, justify="right")
    limit = find_limit(rows)
    for row in rows:
        label = f"{row.name} {row.version or ''}".strip()
        table.add_row(label, row.order, *describe(row, rows, baseline, limit))
    console = Console(width=126)
    console.print(table)
    for problem in dict.fromkeys(f"{row.name} {row.problem}" for row in rows if row.problem):
        console.print(problem, markup=False)


def describe(row, rows, baseline, limit):
    if row.problem:
        return (row.problem.split(":")[0],)
    against = ratio(rows, row.name, baseline, row.order)
    clew = ratio(rows, "clew", row.name, row.order)
    return (
        f"{row.median:,.0f}",
        f"{min(row.rates):,.0f} - {max(row.rates):,.0f}",
        f"{against:.1f}" if against else "",
        f"{clew:.1f}" if clew else "",
        f"{row.median / limit:.0%}" if limit else "",
        f"{row.pss / MIB:,.0f} MiB",
    )


def describe_machine():
    return {
        "machine": platform.machine(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def save(folder, parts, bars, settings):
    """Writes all figures of a run; returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / time.strftime("loader_%Y%m%d_%H%M%S.json")
    content = {
        "machine": describe_machine(),
        "settings": settings,
        "parts": {
            part: [asdict(row) | {"median": row.median} for row in rows]
            for part, rows in parts.items()
        },
        "bars": [asdict(bar) | {"met": bar.met} for bar in bars],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path
