"""What clew holds beside speed: memory over large stores, a quick start, a real shuffle.

Jobs for fresh processes, like those in `child`.
"""

import json
import time

import numpy as np
import psutil

from . import CONTESTANTS, build
from .child import RESULT, WEIGHED, say
from .clew_loader import sequence_columns, write_store
from .source import BATCH, Source

MEMORY_SHARD = (128, 32, 4096)  # samples, layers, dim: 32 MiB
MEMORY_WORKERS = 4
START_SHARDS, START_ROWS = 174, 500


def write_large(data, folder, shards):  # noqa: ARG001 - every job is given both folders
    values = np.random.default_rng(0).standard_normal(MEMORY_SHARD, dtype=np.float32)
    shard = sequence_columns(values.astype(np.float16))
    write_store(folder / "sequences", "sequences", (shard for _ in range(shards)))


def measure_memory(data, folder, reader):  # noqa: ARG001
    """One epoch with four workers; the parent watches the PSS of all processes together."""
    from torch.utils.data import DataLoader

    from clew.datasets import Loader, PreprocessedLSTMDataset, PreprocessedLSTMMapDataset

    if reader == "stream":
        dataset = PreprocessedLSTMDataset(folder)
        batches = DataLoader(dataset, batch_size=BATCH, num_workers=MEMORY_WORKERS)
    elif reader == "map-style":
        dataset = PreprocessedLSTMMapDataset(folder, max_cache_batches=2)
        batches = DataLoader(dataset, batch_size=BATCH, num_workers=MEMORY_WORKERS, shuffle=True)
    else:
        dataset = PreprocessedLSTMMapDataset(folder)
        batches = Loader(dataset, BATCH, shuffle=True, num_workers=MEMORY_WORKERS, low_memory=True)
    say(WEIGHED)
    seen = sum(len(batch["label"]) for batch in batches)
    say(RESULT + json.dumps({"samples": seen}))


def write_many(data, folder):  # noqa: ARG001
    """A store of 87,000 samples, each small: opening one costs the same as with large ones."""
    import pyarrow as pa

    from clew.hallucination.samples.splits import Splits, assign_splits, write_splits
    from clew.loading.splits import Shares

    shard = sequence_columns(np.zeros((START_ROWS, 4, 8), np.float16))
    write_store(folder / "sequences", "sequences", (shard for _ in range(START_SHARDS)))
    ids = np.arange(START_SHARDS * START_ROWS)
    names, labels = [str(i) for i in ids], (ids % 2).astype(np.float32)
    table = Splits(
        global_example_id=ids,
        question_id=pa.array(names),
        split=assign_splits(names, None, labels, shares=Shares()),
        label=labels,
        score=1 - labels,
    )
    write_splits(folder / "splits.csv", table)


def measure_start(data, folder):  # noqa: ARG001
    """Seconds and bytes from a folder's name to a data set that gives its first sample."""
    import pandas  # noqa: F401 - pyarrow imports it at the first use of some functions

    from clew.datasets import PreprocessedLSTMMapDataset

    me = psutil.Process()
    before, started = me.memory_info().rss, time.perf_counter()
    dataset = PreprocessedLSTMMapDataset(folder, split="train")
    dataset[len(dataset) // 2]
    seconds, held = time.perf_counter() - started, me.memory_info().rss - before
    say(RESULT + json.dumps({"seconds": seconds, "bytes": held, "samples": len(dataset)}))


def measure_shuffle(name, data, folder):
    """How far an epoch's order is from the store's: two figures that are 0 for a good shuffle."""
    contestant = build(CONTESTANTS[name])
    contestant.open(data, folder, True)
    order = np.concatenate([np.asarray(labels) for _, labels in contestant.make_epoch()])
    per_shard = len(Source(data).shards[0])
    shard = order // per_shard
    places = np.arange(len(order))
    result = {
        "index": float(np.corrcoef(places, order)[0, 1]),
        "shard": float(np.corrcoef(places, shard)[0, 1]),
        "neighbors": float((shard[1:] == shard[:-1]).mean()),
        "by chance": float(per_shard / len(order)),
        "shards in a batch": float(
            np.mean([len(set(shard[i : i + BATCH])) for i in range(0, len(order), BATCH)])
        ),
    }
    say(RESULT + json.dumps(result))
