"""What runs in a contestant's fresh process: `prepare` once, then `measure` in every round.

Says on standard output which phase it is in, so that the parent weighs it only between timings.
"""

import itertools
import json
import statistics
import time

import numpy as np

from . import CONTESTANTS, GRAPHS, RANDOM_ACCESS, build
from .graphs import BATCH as GRAPH_BATCH
from .graphs import SAMPLES as GRAPH_SAMPLES
from .graphs import PyG, check_equal
from .source import Source, check_epoch, touch

TIMED = "timed"
WEIGHED = "weighed"
RESULT = "result "


def prepare_streams(name, data, folder):
    build(CONTESTANTS[name]).prepare(data, folder)


def prepare_random(name, data, folder):
    build(RANDOM_ACCESS[name]).prepare(data, folder)


def prepare_graphs(name, data, folder):
    build(GRAPHS[name]).prepare(data, folder)


def measure_stream(name, data, folder, shuffle, epochs, least_seconds):
    """Samples a second of every timed epoch, after one epoch that is checked value by value."""
    contestant = build(CONTESTANTS[name])
    contestant.open(data, folder, shuffle)
    if hasattr(contestant, "run_epoch"):
        contestant.run_epoch()
        run_epoch = contestant.run_epoch
    else:
        check_epoch(contestant.make_epoch(), Source(data))
        run_epoch = lambda: consume(contestant.make_epoch())  # noqa: E731
    rates = time_repeatedly(run_epoch, epochs, least_seconds)
    started = time.perf_counter()
    while time.perf_counter() - started < least_seconds:
        run_epoch()
    report(rates)


def consume(batches):
    samples = 0
    for values, labels in batches:
        touch(values, labels)
        samples += len(labels)
    return samples


def measure_random(name, data, folder, least_seconds):
    """Samples a second, one by one in random order; the first ones are checked."""
    contestant = build(RANDOM_ACCESS[name])
    contestant.open(data, folder)
    source = Source(data)
    order = itertools.cycle(np.random.default_rng(0).permutation(len(source.samples)).tolist())
    for index in itertools.islice(order, 20):
        values, label = contestant.get(index)
        if int(label) != index or not np.array_equal(np.asarray(values), source.samples[index]):
            raise SystemExit(f"sample {index} came back as another one, with the label {label}")

    def run_for_a_while():
        samples, until = 0, time.perf_counter() + least_seconds
        while time.perf_counter() < until:
            values, _ = contestant.get(next(order))
            values[-1, -1]
            samples += 1
        return samples

    report(time_repeatedly(run_for_a_while, 3, 0))


def measure_graphs(name, data, folder, epochs, least_seconds):
    """Samples a second of collated batches; clew's first ones are compared with PyG's."""
    contestant = build(GRAPHS[name])
    contestant.open(data, folder)
    order = np.random.default_rng(0).permutation(GRAPH_SAMPLES)
    batches = order.reshape(-1, GRAPH_BATCH).tolist()
    if hasattr(contestant, "run_epoch"):
        contestant.run_epoch()
        report(time_repeatedly(contestant.run_epoch, epochs, least_seconds))
        return
    if name != "PyG":
        rival = PyG()
        rival.open(data, folder)
        for rows in batches:
            check_equal(contestant.collate(rows), rival.collate(rows))
        del rival

    def run_epoch():
        for rows in batches:
            contestant.collate(rows)
        return GRAPH_SAMPLES

    run_epoch()
    report(time_repeatedly(run_epoch, epochs, least_seconds))


def time_repeatedly(run_epoch, epochs, least_seconds):
    """Samples a second, one figure an epoch: `epochs` of them, more until the time is long."""
    say(TIMED)
    rates, spent = [], 0.0
    while len(rates) < epochs or spent < least_seconds:
        started = time.perf_counter()
        samples = run_epoch()
        seconds = time.perf_counter() - started
        rates.append(samples / seconds)
        spent += seconds
    say(WEIGHED)
    return rates


def report(rates):
    say(RESULT + json.dumps({"median": statistics.median(rates), "rates": rates}))


def say(line):
    print(line, flush=True)
