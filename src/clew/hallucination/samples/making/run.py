"""Which shards are lacking, and several of them made at a time."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from clew.hallucination.samples.making.config import PreprocessConfig
from clew.hallucination.samples.making.labelled import LabelledShard
from clew.hallucination.samples.making.shape import SampleShape
from clew.hallucination.samples.making.shard import ShardJob
from clew.hallucination.samples.making.source import TraceSource
from clew.hallucination.samples.making.store import SampleStore
from clew.progress import Reporter, WorkAdvanced, WorkStarted, report_work
from clew.storage.disk import refuse_full_disk
from clew.wording import bytes_text


def plan_jobs(
    source: TraceSource,
    shards: Sequence[LabelledShard],
    shape: SampleShape,
    stores: Sequence[SampleStore],
) -> list[ShardJob]:
    """One for every trace shard that some store lacks."""
    jobs = []
    for shard in shards:
        rows = np.flatnonzero(shard.labelled).tolist()
        lacking = [store for store in stores if not store.has(shard.table, rows)]
        if lacking:
            jobs.append(ShardJob(source=source, shard=shard, shape=shape, stores=lacking))
    return jobs


def run_jobs(
    jobs: Sequence[ShardJob],
    shards: Sequence[LabelledShard],
    config: PreprocessConfig,
    reporter: Reporter,
) -> int:
    """Make what is lacking, several shards at a time; returns the number of samples."""
    if not jobs:
        return 0
    planned = sum(int(shard.labelled.sum()) for shard in shards)
    left = sum(int(job.shard.labelled.sum()) for job in jobs)
    size = bytes_text(sum(job.max_bytes() for job in jobs))
    started = WorkStarted(
        noun="samples",
        planned=planned,
        done=planned - left,
        estimate=f"{left:,} samples to make: at most {size} on disk",
    )
    with report_work(reporter, started):
        return _run_parallel(jobs, config.count_workers(len(jobs)), reporter)


def _run_parallel(jobs: Sequence[ShardJob], workers: int, reporter: Reporter) -> int:
    stop, lock, made = threading.Event(), threading.Lock(), 0

    def on_written(samples: int, written: int) -> None:
        nonlocal made
        with lock:
            made += samples
            reporter(WorkAdvanced(count=samples, written_bytes=written))

    with ThreadPoolExecutor(workers, thread_name_prefix="clew-shard") as pool:
        futures = [pool.submit(job.run, stop.is_set, on_written) for job in jobs]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            # Ctrl-C, or one shard failed: the others end at their next record batch.
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return made


def refuse_if_disk_too_small(out: Path, jobs: Sequence[ShardJob]) -> None:
    """Raises DiskFullError when what is to come will not fit."""
    needed = sum(job.max_bytes() for job in jobs)
    refuse_full_disk(
        out,
        needed,
        what="the run may write up to",
        advice="Make room, choose another `out`, or make less (`node_dim`, `top_k`, "
        "`graphs=False`, `heads=False`).",
    )
