"""Turn a trace store and its scores into samples: validate, write the shards, split."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from clew.base.progress import Note, Reporter, log_event
from clew.cluster import Spread
from clew.hallucination.samples.making.config import KINDS, PreprocessConfig
from clew.hallucination.samples.making.given import SampleInput, read_input
from clew.hallucination.samples.making.jobs import (
    ShardJob,
    refuse_if_disk_too_small,
    run_jobs,
)
from clew.hallucination.samples.making.labeled import (
    describe_balance,
    previous_splits,
    refuse_changed_scores,
    refuse_changed_spans,
    split_samples,
)
from clew.hallucination.samples.making.spreading import run_on_cluster
from clew.hallucination.samples.making.store import SampleStore, is_refused, is_unlabeled
from clew.hallucination.samples.splits import (
    SPLITS_FILE,
    count_files,
    count_labels,
    find_thin_splits,
    write_splits,
)
from clew.loading.splits import SPLIT_NAMES
from clew.storage import Part, read_manifest, writer_lock
from clew.storage.manifest import has_manifest
from clew.storage.scratch import placing

_NO_BASIS = (
    "{}/basis.arrow is missing or damaged: networks on graphs that are trained on these samples "
    "cannot be kept as detectors"
)


@dataclass(frozen=True, kw_only=True, repr=False)
class PreprocessResult:
    """The contents of the folder. `counts` has one row per split: correct samples, hallucinated
    samples."""

    out: Path
    samples: int
    made: int
    bytes: int
    counts: Int[np.ndarray, "splits classes"]
    skipped: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]

    @property
    def path(self) -> Path:
        return self.out

    @property
    def splits(self) -> dict[str, dict[str, int]]:
        """The number of correct and hallucinated answers per split."""
        return {
            name: {"correct": correct, "hallucinated": hallucinated}
            for name, (correct, hallucinated) in zip(SPLIT_NAMES, self.counts.tolist(), strict=True)
        }

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {sum(of.values()):,}" for name, of in self.splits.items())
        refused = f"; {self.refused:,} refused" if self.refused else ""
        return f"PreprocessResult({self.samples:,} samples: {counts}{refused}; {self.out})"

    @property
    def refused(self) -> int:
        """The number of answers that the model refused, which are in no split."""
        return sum(map(is_refused, self.skipped))

    @property
    def complete(self) -> bool:
        """Whether all traces with a score became samples."""
        return all(is_unlabeled(skip) for skip in self.skipped)


def preprocess_store(
    config: PreprocessConfig, reporter: Reporter | None = None, where: Spread | None = None
) -> PreprocessResult:
    """Write sequences, graphs, answers, heads and splits.csv; shards finished by an earlier run are
    kept. With `where`, the workers of a cluster write them. Raises InputError, StoreError,
    SettingsMismatchError or DiskFullError, before anything is written if the small columns reveal
    the problem.
    """
    reporter = reporter or log_event
    given = read_input(config)
    config, source, shards = given.config, given.source, given.shards
    for note in given.notes:
        reporter(Note(note))
    if config.split_by == "file":
        count_files(len(shards), config.shares)
    with _locked(config):
        previous = previous_splits(config.out)
        stores = given.open_stores()
        jobs = _plan_checked(given, stores)
        if not source.copy_basis(config.out):
            reporter(Note(_NO_BASIS.format(source.path)))
        if where is None:
            made = run_jobs(jobs, shards, config, reporter)
        else:
            made = run_on_cluster(given, jobs, stores, where, reporter)
        splits, more = split_samples(config, shards, stores[0], previous)
        with placing(config.out, SPLITS_FILE) as file:
            write_splits(file, splits)
    counts = count_labels(splits.split, splits.label)
    balance = describe_balance(shards, config.score_threshold)
    thin = find_thin_splits(counts, tuple(config.shares))
    return PreprocessResult(
        out=config.out,
        samples=len(splits),
        made=made,
        bytes=sum(store.manifest.bytes for store in stores),
        counts=counts,
        skipped=stores[0].manifest.skipped,
        warnings=(*balance, *more, *thin, *_describe_other_kind(config, len(splits))),
    )


@contextmanager
def _locked(config: PreprocessConfig) -> Iterator[None]:
    """Lock the folder for this command, and the stores in it against a repair."""
    with ExitStack() as stack:
        stack.enter_context(writer_lock(config.out, Part()))
        for kind in config.kinds:
            stack.enter_context(writer_lock(config.out / kind, Part()))
        yield


def _plan_checked(given: SampleInput, stores: Sequence[SampleStore]) -> list[ShardJob]:
    """The work to do, after checking that it matches the existing stores and fits on disk; then
    starts the stores."""
    for store in stores:
        refuse_changed_scores(given.config.out, store, given.shards)
        refuse_changed_spans(given.config.out, store, given.spans)
    jobs = given.plan(stores)
    refuse_if_disk_too_small(given.config, jobs)
    for store in stores:
        store.begin()
    return jobs


def _describe_other_kind(config: PreprocessConfig, samples: int) -> Iterator[str]:
    for kind in KINDS:
        path = config.out / kind
        if kind not in config.kinds and has_manifest(path):
            rows = read_manifest(path).rows
            if rows != samples:
                yield (
                    f"{path} was not changed and has {rows:,} samples, while {config.out} now has "
                    f"{samples:,}: run the same command without `{kind}=False` to update it"
                )
