"""Turn a trace store and its scores into samples: validate, write the shards, split."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from clew.base.errors import InputError
from clew.base.progress import Note, Reporter, WorkAdvanced, log_event, report_work
from clew.base.texts import counted
from clew.base.urls import resolved
from clew.cluster.workers import Spread, spread
from clew.hallucination.labels import (
    Scores,
    SpanLabels,
    read_scores,
    read_span_labels,
    spans_beside,
)
from clew.hallucination.samples.attention_graphs import HEAD_THRESHOLD
from clew.hallucination.samples.columns import answer_fields
from clew.hallucination.samples.labeled import (
    LabeledShard,
    describe_balance,
    label_shards,
    previous_splits,
    refuse_changed_scores,
    refuse_changed_spans,
    split_samples,
)
from clew.hallucination.samples.shard_jobs import (
    ShardJob,
    describe_work,
    refuse_if_disk_too_small,
    run_jobs,
)
from clew.hallucination.samples.source import (
    ANSWER_SPANS,
    KINDS,
    NUMBERS,
    PLACES,
    TOKEN_LABELS,
    Kind,
    PreprocessConfig,
    SampleShape,
    TraceSource,
)
from clew.hallucination.samples.splits import (
    SPLITS_FILE,
    count_files,
    count_labels,
    find_thin_splits,
    write_splits,
)
from clew.hallucination.samples.store import SampleStore, is_refused, is_unlabeled
from clew.hallucination.traces.schema import BY_HEAD, DIAGONALS, EIGENVALUES, WITHOUT_ATTENTION
from clew.loading.splits import SPLIT_NAMES
from clew.storage.lock import Part, writer_lock
from clew.storage.manifest import has_manifest, read_manifest
from clew.storage.mirror import open_folder
from clew.storage.working_copy import placing

_NO_BASIS = (
    "{}/basis.arrow is missing or damaged: networks on graphs that are trained on these samples "
    "cannot be kept as detectors"
)


@dataclass(frozen=True, kw_only=True)
class SampleInput:
    """What samples are made from, checked; `notes` say what a user should know about it."""

    config: PreprocessConfig
    source: TraceSource
    spans: SpanLabels | None
    shape: SampleShape
    scores: Scores
    shards: Sequence[LabeledShard]
    notes: tuple[str, ...]

    def open_stores(self) -> list[SampleStore]:
        told = {"file": self.scores.path.name, "sha256": self.scores.sha256}
        if self.spans is not None:
            told |= {"spans_file": self.spans.path.name, "spans_sha256": self.spans.sha256}
        without = self.shape.source.without_attention
        settings = {
            "source": self.source.identity,
            "scores": told,
            "score_threshold": self.config.score_threshold,
            "attn_threshold": self.shape.attn_threshold,
            "top_k": self.shape.top_k,
            "node_dim": self.shape.features,
            "split": str(self.config.shares),
            "split_by": self.config.split_by,
            # Not where it is the default: folders of earlier versions do not have it.
            **({} if self.config.refused == "exclude" else {"refused": self.config.refused}),
            "shape": {
                "layers": self.shape.source.layers,
                "dim": self.shape.source.dim,
                "features": self.shape.features,
                "edge_features": 1,
            },
            **({WITHOUT_ATTENTION: list(without)} if without else {}),
        }
        own: dict[Kind, dict[str, Any]] = {
            "answers": {"columns": [field.name for field in answer_fields(self.shape)]},
            "heads": {"head_threshold": HEAD_THRESHOLD},
        }
        size = self.source.manifest.rows_per_shard
        return [
            SampleStore(self.config.out / kind, kind, {**settings, **own.get(kind, {})}, size)
            for kind in self.config.kinds
        ]

    def plan(self, stores: Sequence[SampleStore]) -> list[ShardJob]:
        """One job for every trace shard whose samples are missing in some store."""
        jobs = []
        for shard in self.shards:
            rows = np.flatnonzero(shard.labeled).tolist()
            lacking = [store for store in stores if not store.has(shard.table, rows)]
            if lacking:
                about: dict[str, Any] = {"source": self.source, "shape": self.shape}
                jobs.append(ShardJob(shard=shard, stores=lacking, spans=self.spans, **about))
        return jobs


def read_input(config: PreprocessConfig) -> SampleInput:
    source = TraceSource(
        open_folder(config.store, cache_dir=config.cache_dir, cache_size=config.cache_size)
    )
    spans = _read_spans(config, source)
    shape = choose_shape(config, source, with_spans=spans is not None)
    config = choose_kinds(config, shape)
    if has_manifest(config.out):
        raise InputError(
            f"this is a store. Choose a folder for the samples, for example "
            f'"{config.out.with_name("preprocessed_data")}".',
            setting="out",
            value=config.out,
        )
    scores = read_scores(
        config.scores_file, score_column=config.score_column, higher_is=config.higher_is
    )
    shards, notes = label_shards(
        source.read_tables(),
        scores,
        threshold=config.score_threshold,
        skip_unlabeled=config.skip_unlabeled,
        refused=config.refused,
    )
    return SampleInput(
        config=config,
        source=source,
        spans=spans,
        shape=shape,
        scores=scores,
        shards=shards,
        notes=(
            *(*scores.notes, *notes),
            *_describe_lacking(config, source),
            *_describe_truncated(shards),
        ),
    )


def _read_spans(config: PreprocessConfig, source: TraceSource) -> SpanLabels | None:
    """The span labels, if there are any. Raises InputError if tokens cannot be labeled by them."""
    beside = spans_beside(config.scores_file)
    path = config.spans_file or (beside if beside.exists() else None)
    if path is None:
        return None
    if not source.shape.has_token_ends:
        raise InputError(
            f'the traces of "{source.path}" do not say where tokens end in the text of the answer: '
            'run "clew extract" on questions with a column "answer_parts", or remove the file.',
            setting="spans_file",
            value=path,
        )
    return read_span_labels(path)


def choose_shape(
    config: PreprocessConfig, source: TraceSource, *, with_spans: bool = False
) -> SampleShape:
    """What goes into the samples; raises InputError if more is requested than is stored."""
    stored = source.shape
    if with_spans:
        places = () if _lacks_places(config.out / "answers") else PLACES
        stored = replace(stored, extras=stored.extras | {TOKEN_LABELS, *places})
    if config.node_dim is not None and config.node_dim > stored.node_dim:
        raise InputError(
            f'"{source.path}" has only {stored.node_dim} values per node. Use at most '
            f'{stored.node_dim}, or run "clew extract" with a larger `node_dim`.',
            setting="node_dim",
            value=config.node_dim,
        )
    top_k = config.top_k or stored.edges_per_token
    if top_k > stored.edges_per_token and not stored.has_maps:
        raise InputError(
            f'"{source.path}" has only {stored.edges_per_token} edges per token. Use at most '
            f'{stored.edges_per_token}, or run "clew extract" with a larger `edges_per_token` '
            'or with `keep="full"`.',
            setting="top_k",
            value=top_k,
        )
    return SampleShape(
        source=stored,
        features=config.node_dim or stored.node_dim,
        top_k=top_k,
        attn_threshold=config.attn_threshold,
    )


def _lacks_places(answers: Path) -> bool:
    """Whether an earlier version began these samples: they are completed as they are."""
    columns = read_manifest(answers).settings.get("columns", []) if has_manifest(answers) else []
    return TOKEN_LABELS in columns and ANSWER_SPANS not in columns


def choose_kinds(config: PreprocessConfig, shape: SampleShape) -> PreprocessConfig:
    """The config without the kinds that the traces cannot provide; raises InputError if none
    remain."""
    kinds = tuple(filter(shape.can_make, config.kinds))
    if not kinds:
        raise InputError(
            f'"{config.store}" has no attention maps, so only sequences, graphs and answers can '
            "be created from it: omit one of `sequences=False`, `graphs=False` and "
            '`answers=False`, or run "clew extract" with `keep="full"`.'
        )
    return replace(config, kinds=kinds)


def _describe_lacking(config: PreprocessConfig, source: TraceSource) -> Iterator[str]:
    planned, rows = source.manifest.planned_rows, source.manifest.rows
    if planned is not None and rows < planned:
        yield (
            f"{source.path} has {rows:,} of its {planned:,} planned traces: when it is "
            "complete, run the same command again to add the rest"
        )
    of_heads = BY_HEAD if EIGENVALUES in source.manifest.settings else DIAGONALS
    lacking = [name for name in (*NUMBERS, *of_heads) if name not in source.shape.extras]
    if "answers" in config.kinds and lacking:
        yield (
            f"not all traces of {source.path} have {' and '.join(lacking)}: the answers are "
            "created without the fields derived from these"
        )


def _describe_truncated(shards: Sequence[LabeledShard]) -> Iterator[str]:
    """Those that do not come to the point are labeled as hallucinated, and a detector that is used
    gives no risk for such answers."""
    count = sum(int((shard.table.truncated & shard.labeled).sum()) for shard in shards)
    if count:
        are, stay = ("is", "stays") if count == 1 else ("are", "stay")
        share = count / sum(int(shard.labeled.sum()) for shard in shards)
        yield (
            f"{counted(count, 'answer')} ({share:.0%}) {are} cut off at the limit of tokens and "
            f'{stay} in the samples: run "clew extract" with more `max_new_tokens` to have them '
            "complete"
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
    with ExitStack() as locks:  # for this command; those of the stores keep a repair away
        for folder in (config.out, *(config.out / kind for kind in config.kinds)):
            locks.enter_context(writer_lock(folder, Part()))
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


def run_on_cluster(
    given: SampleInput,
    jobs: Sequence[ShardJob],
    stores: Sequence[SampleStore],
    where: Spread,
    reporter: Reporter,
) -> int:
    """Write the missing shards, one per worker at a time; returns the number of samples."""
    config, made = given.config, 0
    names = ("store", "scores_file", "out", "spans_file", "cache_dir")
    paths = {name: getattr(config, name) for name in names}
    absolute: dict[str, Any] = {name: path and resolved(path) for name, path in paths.items()}
    worker = replace(config, **absolute)
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
    written = [(0, 0)]
    if number in jobs:
        jobs[number].run(lambda: False, lambda count, size: written.append((count, size)))
    samples, sizes = zip(*written, strict=True)
    return sum(samples), sum(sizes)
