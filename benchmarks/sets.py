"""Detection on question sets that no method was trained on: every built-in set and files of
questions, each tested by detectors trained on all the others.

    python benchmarks/sets.py --work DIR --questions NQ-open.dev.jsonl
    python benchmarks/sets.py --work DIR --questions NQ-open.dev.jsonl --on-gpu 8 --on-cpu 8
    python benchmarks/sets.py --work DIR --curve 5 --num-samples 150 [--sealed]

Sets are captured side by side and methods fitted side by side in processes of this machine, into
the folder of an ordinary comparison: the end is `clew compare --stores`, which only makes the
table. The same command again resumes. Every fit adds its AUROC to DIR/fits.csv when it ends.

With --curve, detectors are trained on one, two, four and more sets, drawn anew each time, and each
set is tested by those that were not trained on it. The sealed sets and those that no method was
designed on are only tested, with --sealed, and nothing is chosen by what comes out.
"""

import argparse
import csv
import multiprocessing
import os
import queue
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from clew.hallucination.questions import built_in_names, load_questions

BUILT_IN = built_in_names("all")
UNSEEN = ("culture", "everyday", "abbreviations")
OPEN = [name for name in BUILT_IN if name not in UNSEEN] + built_in_names("small")
SEALED = [*built_in_names("sealed"), *UNSEEN]
FOLDS = 4
CAPTURE = ("--draws", "5", "--self-evaluation")
SMALL_CAPTURE = ("--node-dim", "4", "--edges-per-token", "1")  # probes need no more
# Fitted first: what a table without the rest would need, then what takes longest.
FIRST = ("robust", "gated", "fusion", "perplexity", "min_probability", "text", "linear_probe")
FIRST += ("contrastive", "gnn_det", "gvae", "act_vit")
# A plan that is measured beside other processes would differ from one fit to the next.
BATCH_SIZE = 256
COLUMNS = ("method", "set", "validation", "auroc", "low", "high", "answers", "correct", "seconds")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--questions", type=Path, action="append", default=[], help="another set")
    parser.add_argument("--sets", nargs="+", help="[default: the ten of all; with --curve, open]")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--num-samples", type=int, help="of each set [default: all]")
    parser.add_argument("--methods", help="[default: all]")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--captures", type=int, default=6, help="sets to capture at once")
    parser.add_argument("--on-gpu", type=int, default=0, help="processes that fit networks")
    parser.add_argument("--on-cpu", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--curve", type=int, help="times to draw the sets to train on")
    parser.add_argument("--answers", type=int, help="with --curve: to train on, of all sets")
    parser.add_argument("--sealed", action="store_true", help="with --curve: test on the sealed")
    args = parser.parse_args()
    started = time.monotonic()
    args.sets = args.sets or (OPEN if args.curve else BUILT_IN)
    if args.sealed:
        args.sets = [*args.sets, *SEALED]
    sets = {**{name: name for name in args.sets}, **{one.stem: str(one) for one in args.questions}}
    if args.curve:
        capture_sets(args, sets)
    else:
        capture_all(args, sets)
    print(f"{len(sets)} sets captured after {time.monotonic() - started:.0f} s", flush=True)
    if args.curve:
        draw_curve(args, list(sets))
    else:
        fit_all(args, list(sets))
        print(f"fitted after {time.monotonic() - started:.0f} s", flush=True)
        make_table(args, list(sets))
    print(f"finished after {time.monotonic() - started:.0f} s", flush=True)


def capture_all(args, sets):
    basis = args.work / "basis"
    some = ("--model", args.model, "--questions", args.sets[0], "--num-samples", "64")
    run("extract", *some, "--out", basis)
    capture_sets(args, sets, basis)


def capture_sets(args, sets, basis=None):
    """With what every method needs, or without a basis what probes do. Sets whose samples are there
    are left alone."""
    # Long ones first, so that none is waited for alone.
    built_in = built_in_names()
    sizes = {name: len(load_questions(name).questions) for name in sets if name in built_in}
    by_size = sorted(sets, key=lambda name: sizes.get(name, 1e9))
    with ThreadPoolExecutor(args.captures) as pool:
        list(pool.map(lambda name: capture(args, name, sets[name], basis), by_size[::-1]))


def capture(args, name, questions, basis):
    traces, samples = args.work / "traces" / name, args.work / "samples" / name
    if (samples / "answers" / "manifest.json").exists():
        return
    scores = traces.with_name(f"{name}.scores.csv")
    some = ("--num-samples", str(args.num_samples)) if args.num_samples else ()
    some += ("--model", args.model, *(("--basis", basis, *CAPTURE) if basis else SMALL_CAPTURE))
    run("extract", "--questions", questions, *some, "--out", traces)
    run("label", traces, "--out", scores, "--overwrite")
    graphs = () if basis else ("--no-graphs",)
    run("preprocess", traces, "--scores-file", scores, *graphs, "--out", samples)


def run(*words):
    """Run a command of clew; its output appears if it fails."""
    command = [sys.executable, "-m", "clew", *map(str, words), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def fit_all(args, names):
    from clew.hallucination.comparison.methods import find_methods

    methods = find_methods(configure(args, names).methods)
    networks = [one.name for one in methods if one.family == "network"]
    others = [one.name for one in methods if one.family != "network"]
    for some in (networks, others):
        some.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    # Otherwise numpy starts a thread per core in each of the processes.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    context = multiprocessing.get_context("spawn")  # CUDA cannot be used after a fork
    waiting = {"gpu": context.Queue(), "cpu": context.Queue()}
    for kind, some in (("gpu" if args.on_gpu else "cpu", networks), ("cpu", others)):
        for method in some:
            for number in range(len(names)):
                waiting[kind].put((number, method))
    results = context.Queue()
    processes = [
        context.Process(target=work, args=(args, names, kind, waiting, results))
        for kind, count in (("gpu", args.on_gpu), ("cpu", args.on_cpu))
        for _ in range(count)
    ]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes) or not results.empty():
        try:
            add_line(args.work / "fits.csv", results.get(timeout=1))
        except queue.Empty:
            continue


def add_line(path, line):
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([COLUMNS, line] if is_new else [line])
    print(*line, flush=True)


def work(args, names, kind, waiting, results):
    """In a process: fit what is waiting. One with the GPU helps the others in the end."""
    if kind == "cpu" and args.on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    from clew.hallucination.comparison import run as comparing
    from clew.hallucination.comparison.methods import find_methods

    torch.set_num_threads(1)
    config = configure(args, names)
    methods = {one.name: one for one in find_methods(config.methods)}
    plan = comparing._prepare(config, list(methods.values()))
    for source in (waiting["gpu"], waiting["cpu"]) if kind == "gpu" else (waiting["cpu"],):
        while True:
            try:
                number, method = source.get(timeout=1)
            except queue.Empty:
                break
            if plan.trials[number].can_run(methods[method]):
                results.put(fit(plan.trials[number], methods[method]))


def fit(trial, method):
    from clew.base.progress import ignore_event
    from clew.hallucination.comparison.evaluation import measure_method
    from clew.hallucination.comparison.fitting import find_or_fit

    [test] = trial.tests
    started = time.monotonic()
    try:
        seeds, _ = find_or_fit(method, trial, trial.tests, ignore_event, lambda: False)
    except Exception as error:  # the table says it again
        return [method.name, test.name, repr(error)]
    labels = trial.labels(test)
    row = measure_method(method, seeds, labels, store=test.name, bytes_=0).row
    figures = (row["val_auroc"], row["test_auroc"], *row["test_auroc_ci"])
    counts = len(labels.test), int((labels.test == 0).sum())
    seconds = round(time.monotonic() - started, 1)
    return [method.name, test.name, *(f"{one:.4f}" for one in figures), *counts, seconds]


def configure(args, names):
    """What `make_table` asks for on the command line."""
    from clew.engine import PlanRequest, TrainConfig
    from clew.hallucination.comparison import CompareConfig

    folders = tuple(args.work / "samples" / name for name in names)
    return CompareConfig(
        train_on=folders,
        test_on=folders,
        out=args.work / "comparison",
        methods=tuple(args.methods.split(",")) if args.methods else None,
        seeds=args.seeds,
        names=tuple(names),
        pairs=False,
        keep_detectors="none",
        train=TrainConfig(epochs=args.epochs, patience=10),
        request=PlanRequest(batch_size=BATCH_SIZE, compile=False),
    )


def make_table(args, names):
    stores = [str(args.work / "samples" / name) for name in names]
    some = ["--methods", args.methods] if args.methods else []
    subprocess.run(
        [sys.executable, "-m", "clew", "compare", "--stores", *stores, "--name", ",".join(names)]
        + ["--no-pairs", "--keep-detectors", "none", "--seeds", str(args.seeds)]
        + ["--batch-size", str(BATCH_SIZE), "--no-compile", "--epochs", str(args.epochs)]
        + ["--out", str(args.work / "comparison"), *some],
        check=True,
    )


def draw_curve(args, names):
    """A line per method and number of training sets: the mean AUROC over the tested sets, with a
    95% interval over these sets."""
    from clew.hallucination.samples.answers import AnswerFeatures, FieldMemory

    memory = FieldMemory()
    data = {name: AnswerFeatures(args.work / "samples" / name, memory=memory) for name in names}
    only_tested = [name for name in names if args.sealed and name in SEALED]
    trained = [name for name in names if name not in only_tested]
    largest = len(trained) if only_tested else len(trained) - -(-len(trained) // FOLDS)
    counts = [*(2**power for power in range(8) if 2**power < largest), largest]
    found = {}
    for draw in range(args.curve):
        order = [str(name) for name in np.random.default_rng(draw).permutation(trained)]
        for fold in [only_tested] if only_tested else np.array_split(order, FOLDS):
            others = [name for name in order if name not in fold]
            for count in counts:
                for method in (args.methods or "robust,perplexity").split(","):
                    some = {name: data[name] for name in others[:count]}
                    tests = {name: data[name] for name in fold}
                    for name, value in measure_transfer(method, some, tests, args.answers):
                        found.setdefault((method, count), {}).setdefault(name, []).append(value)
    print("method,training sets,tested sets,auroc,low,high")
    for (method, count), by_set in found.items():
        means = np.array([np.mean(values) for values in by_set.values()])
        drawn = np.random.default_rng(0).choice(means, (2000, len(means))).mean(axis=1)
        low, high = np.quantile(drawn, (0.025, 0.975))
        print(f"{method},{count},{len(means)},{means.mean():.4f},{low:.4f},{high:.4f}")
    for (method, count), by_set in found.items():
        each = ", ".join(f"{name} {np.mean(values):.3f}" for name, values in by_set.items())
        print(f"{method}, {count} sets: {each}")


def measure_transfer(method, train, tests, answers):
    """(set, AUROC) of a method that is trained on all answers of some sets, or on as many of each
    as give `answers` together."""
    from clew.hallucination.detectors.probes.registry import PROBES
    from clew.hallucination.samples.mixed import MixedAnswers, Portion
    from clew.metrics.ranking import auroc

    every = [Portion.of(one) for one in train.values()]
    most = answers // len(every) if answers else None
    some = [Portion(data=one.data, rows=one.rows[:most]) for one in every]
    mixed = MixedAnswers("the training sets", {"train": some, "validation": some})
    whole = {name: MixedAnswers(name, {"test": [Portion.of(one)]}) for name, one in tests.items()}
    outcome = PROBES[method].run(mixed, whole, seed=0)
    for name, scores in outcome.tests.items():
        yield name, auroc(whole[name].labels["test"], scores)


if __name__ == "__main__":
    main()
