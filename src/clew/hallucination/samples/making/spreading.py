"""Write sample shards on the workers of a cluster."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from clew.base.progress import Reporter, WorkAdvanced, report_work
from clew.base.urls import resolved
from clew.cluster import Spread, spread
from clew.hallucination.samples.making.config import PreprocessConfig
from clew.hallucination.samples.making.given import SampleInput, read_input
from clew.hallucination.samples.making.jobs import (
    ShardJob,
    describe_work,
)
from clew.hallucination.samples.making.store import SampleStore


def run_on_cluster(
    given: SampleInput,
    jobs: Sequence[ShardJob],
    stores: Sequence[SampleStore],
    where: Spread,
    reporter: Reporter,
) -> int:
    """Write the missing shards, one per worker at a time; returns the number of samples."""
    config, made = given.config, 0
    worker = replace(
        config,
        store=resolved(config.store),
        scores_file=resolved(config.scores_file),
        out=resolved(config.out),
        spans_file=None if config.spans_file is None else resolved(config.spans_file),
        cache_dir=None if config.cache_dir is None else resolved(config.cache_dir),
    )
    setup = functools.partial(_open_jobs, worker)
    numbers = [job.entry.batch_number for job in jobs]
    if not numbers:
        return 0
    with report_work(reporter, describe_work(jobs, given.shards)):
        for samples, written in spread(where, setup, numbers, reporter, count=itemgetter(0)):
            made += samples
            reporter(WorkAdvanced(count=samples, written_bytes=written))
    for store in stores:
        store.reload()
    return made


def _open_jobs(config: PreprocessConfig) -> Callable[[int], tuple[int, int]]:
    """In a worker: what it has to do, by the number of the shard. The process that started it holds
    the locks."""
    given = read_input(config)
    jobs = {job.entry.batch_number: job for job in given.plan(given.open_stores())}
    return functools.partial(_run_job, jobs)


def _run_job(jobs: Mapping[int, ShardJob], number: int) -> tuple[int, int]:
    """The samples and bytes written; none if a worker that died had finished the shard."""
    samples = written = 0

    def add(more_samples: int, more_bytes: int) -> None:
        nonlocal samples, written
        samples, written = samples + more_samples, written + more_bytes

    if number in jobs:
        jobs[number].run(lambda: False, add)
    return samples, written
