"""Samples a second, memory and quality of clew's loader beside its rivals, in one run.

    python benchmarks/loader.py                        every part, about three quarters of an hour
    python benchmarks/loader.py --part sequences       one part
    python benchmarks/loader.py --quick                little data, to see that all of it runs

Each contestant runs in a fresh process, in turn, several rounds; the page cache is warm. How to
install the rivals: loader_rivals/requirements.txt.
"""

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

from loader_rivals import CONTESTANTS, GRAPHS, RANDOM_ACCESS
from loader_rivals.limits import MEMORY_SHARD, MEMORY_WORKERS
from loader_rivals.report import MIB, Bar, find, find_limit, print_rows, ratio, save
from loader_rivals.rounds import prepare, run_job, run_rounds
from loader_rivals.source import QUICK_SHAPES, SHAPES, write_source
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"
PROCESS_LOADERS = (
    "mosaicml-streaming",
    "litdata",
    "webdataset",
    "HF datasets",
    "HF datasets, arrow",
)


def say(message):
    print(f"  {message}", flush=True)


def make_source(args, name):
    shape = (QUICK_SHAPES if args.quick else SHAPES)[name]
    folder = args.data / name
    say(f"{name}: {shape.samples:,} samples of float16 [{shape.layers}, {shape.dim}]")
    write_source(folder / "source", shape)
    return folder


def run_streams(args, part):
    folder = make_source(args, part)
    data, formats = folder / "source", folder / "formats"
    rows = prepare(
        chosen(CONTESTANTS, args),
        ("shuffled", "unshuffled"),
        "prepare_streams",
        data,
        formats,
        say,
    )

    def make_job(row):
        return {
            "do": "measure_stream",
            "name": row.name,
            "data": data,
            "folder": formats / row.name,
            "shuffle": row.order == "shuffled",
            "epochs": args.epochs,
            "least_seconds": args.seconds,
        }

    run_rounds(rows, args.repeats, make_job, say)
    print_rows(part, rows, "plain")
    return rows


def run_sequences(args):
    rows = run_streams(args, "sequences")
    bars = [
        Bar(promise="shuffled, clew beside the plain way", value=times(rows, "plain"), least=15)
    ]
    bars += [
        Bar(promise=f"shuffled, clew beside {name}", value=times(rows, name), least=10)
        for name in PROCESS_LOADERS
    ]
    for order, least in (("shuffled", 0.45), ("unshuffled", 0.70)):
        clew, limit = find(rows, "clew", order), find_limit(rows)
        share = clew.median / limit if clew and limit else None
        promise = f"{order}, clew's share of the memcpy limit"
        bars.append(Bar(promise=promise, value=share, least=least, unit="share"))
        workers = ratio(rows, "clew, DataLoader, 4 workers", "clew, DataLoader", order)
        promise = f"{order}, clew in a DataLoader with 4 workers beside none"
        bars.append(Bar(promise=promise, value=workers, least=1))
    return rows, [*bars, *weigh_low_memory(rows)]


def times(rows, name):
    return ratio(rows, "clew", name, "shuffled")


def weigh_low_memory(rows):
    mine, rival = (
        find(rows, name, "shuffled") for name in ("clew, low memory", "mosaicml-streaming")
    )
    if rival:
        value = mine.pss / MIB if mine else None
        promise = "PSS of the low-memory mode, within mosaicml-streaming's"
        yield Bar(promise=promise, value=value, least=rival.pss / MIB, unit="MiB", at_most=True)


def run_small(args):
    rows = run_streams(args, "small")
    promise = "small shape, shuffled, clew beside the plain way"
    return rows, [Bar(promise=promise, value=times(rows, "plain"), least=15)]


def run_random(args):
    folder = make_source(args, "sequences")
    data, formats = folder / "source", folder / "formats"
    rows = prepare(chosen(RANDOM_ACCESS, args), ("random",), "prepare_random", data, formats, say)
    job = {"do": "measure_random", "data": data, "least_seconds": args.seconds}
    run_rounds(rows, args.repeats, named_job(job, formats), say)
    print_rows("random access, one by one", rows, "plain")
    return rows, compare(rows, ("clew", "clew, views"), "mosaicml-streaming", "random access", 5)


def run_graphs(args):
    folder = args.data / "graphs"
    rows = prepare(chosen(GRAPHS, args), ("random",), "prepare_graphs", folder, folder, say)
    times = {"epochs": args.epochs, "least_seconds": args.seconds}
    run_rounds(
        rows,
        args.repeats,
        named_job({"do": "measure_graphs", "data": folder, **times}, folder),
        say,
    )
    print_rows("graph batches, 16 samples x 32 graphs", rows, "PyG")
    return rows, compare(rows, ("clew", "clew, two threads"), "PyG", "graph batches", 12)


def named_job(job, formats):
    return lambda row: {**job, "name": row.name, "folder": formats / row.name}


def compare(rows, names, rival, what, least):
    return [
        Bar(
            promise=f"{what}, {name} beside {rival}",
            value=ratio(rows, name, rival, "random"),
            least=least,
        )
        for name in names
    ]


def write_once(folder, **job):
    """Writes a store unless it is there whole; what a run that was broken off left is dropped."""
    done = folder.with_name(f"{folder.name}.done")
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        run_job(**job, data=folder, folder=folder)
        done.touch()


def run_memory(args):
    """The store grows, the memory does not: PSS of all processes, four workers."""
    samples, layers, dim = MEMORY_SHARD
    shard = samples * layers * dim * 2
    bound = (MEMORY_WORKERS + 1) * shard + 300 * MIB
    sizes = (2, 4) if args.quick else (15, 75, 290)  # the last is 20 times the bound
    table = Table(title="PSS, four workers", title_justify="left")
    columns = [f"{count} shards, {count * shard / MIB:,.0f} MiB" for count in sizes]
    for column in ("reader", *columns):
        table.add_column(column, justify="left" if column == "reader" else "right")
    bars = []
    for count in sizes:
        folder = args.data / "memory" / str(count)
        write_once(folder, do="write_large", shards=count)
    for reader in ("stream", "map-style", "loader, low memory"):
        job = {"do": "measure_memory", "reader": reader}
        folders = [args.data / "memory" / str(count) for count in sizes]
        peaks = [run_job(**job, data=folder, folder=folder)[1] for folder in folders]
        table.add_row(reader, *(f"{peak / MIB:,.0f} MiB" for peak in peaks))
        promise = f"{reader}, {sizes[-1]} shards: within five shards + 300 MiB"
        value = peaks[-1] / MIB
        bars.append(Bar(promise=promise, value=value, least=bound / MIB, unit="MiB", at_most=True))
    Console(width=126).print(table)
    return [], bars


def run_start(args):
    folder = args.data / "start"
    write_once(folder, do="write_many")
    found = [run_job(do="measure_start", data=folder, folder=folder)[0] for _ in range(5)]
    seconds = statistics.median(result["seconds"] for result in found)
    held = statistics.median(result["bytes"] for result in found) / MIB
    promise = "a store of 87,000 samples in 174 shards opens"
    return [], [
        Bar(promise=promise, value=seconds, least=1, unit="s", at_most=True),
        Bar(promise=promise, value=held, least=50, unit="MiB", at_most=True),
    ]


def run_shuffle(args):
    """Correlation of a sample's place in the epoch with its place in the store."""
    folder = make_source(args, "sequences")
    data, formats = folder / "source", folder / "formats"
    entries = {name: e for name, e in chosen(CONTESTANTS, args).items() if name != "memcpy"}
    table = Table(title="shuffle", title_justify="left")
    names = ("index", "shard", "neighbors", "by chance", "shards in a batch")
    for column in ("loader", *names):
        table.add_column(column, justify="left" if column == "loader" else "right")
    for row in prepare(entries, ("shuffled",), "prepare_streams", data, formats, say):
        if row.problem:
            table.add_row(row.name, row.problem)
            continue
        job = {"do": "measure_shuffle", "name": row.name, "data": data}
        result, _ = run_job(**job, folder=formats / row.name)
        table.add_row(row.name, *(f"{result[name]:.3f}" for name in names))
    Console(width=126).print(table)
    return [], []


# A part returns the rows it measured and the bars it stands for.
PARTS = {
    "sequences": run_sequences,
    "small": run_small,
    "random": run_random,
    "graphs": run_graphs,
    "memory": run_memory,
    "start": run_start,
    "shuffle": run_shuffle,
}


def chosen(entries, args):
    return {name: entry for name, entry in entries.items() if name in (args.only or entries)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=[*PARTS, "all"], default="all")
    parser.add_argument("--only", nargs="+", choices=[*CONTESTANTS, "PyG"], metavar="LOADER")
    parser.add_argument("--data", type=Path, help="keeps the data there for the next run")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of fresh processes")
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs in each process")
    parser.add_argument("--seconds", type=float, default=1.0, help="least timed in each process")
    parser.add_argument("--quick", action="store_true", help="little data, figures mean nothing")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        args.data = (args.data or Path(scratch)).resolve()
        run_parts(args)


def run_parts(args):
    parts, bars = {}, []
    for part in PARTS if args.part == "all" else [args.part]:
        parts[part], promised = PARTS[part](args)
        bars += promised
    for bar in bars:
        print(bar)
    settings = {key: value for key, value in vars(args).items() if key != "data"}
    print(f"figures: {save(RESULTS, parts, bars, settings)}")


if __name__ == "__main__":
    main()
