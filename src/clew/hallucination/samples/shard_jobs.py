"""Write the missing sample shards, several at a time, all kinds in one pass over a trace shard.
Rows keep their order. Memory stays constant: traces are split into pieces of a few megabytes, and
pieces are combined into record batches that are large enough to read at full speed.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32

from clew.base.progress import Reporter, WorkAdvanced, WorkStarted, report_work
from clew.base.texts import bytes_text
from clew.base.urls import UrlPath
from clew.hallucination.labels import SpanLabels
from clew.hallucination.samples.columns import (
    build_rows,
    find_unusable,
    measure_lengths,
    row_bytes,
    sample_schema,
)
from clew.hallucination.samples.labeled import LabeledShard
from clew.hallucination.samples.source import (
    ANSWER_SPANS,
    KINDS,
    TOKEN_LABELS,
    Lengths,
    PreprocessConfig,
    SampleShape,
    TraceSource,
)
from clew.hallucination.samples.store import SampleStore
from clew.hallucination.traces.packed import unpack_batch
from clew.hallucination.traces.schema import TOKEN_ENDS
from clew.storage.manifest import ShardEntry
from clew.storage.working_copy import scratch_root
from clew.storage.writer import ShardWriter
from clew.storage.writing import refuse_full_disk

RECORD_BATCH_BYTES = 16 << 20
# Mapped pages count as this process's memory until the file is closed, so it is reopened now and
# then.
_REMAP_BYTES = 64 << 20
UNLABELED = "it has no score in the scores file"
_REASONS = {
    "": UNLABELED,
    "refused": "the model refused to answer",
    "excluded": "a correction in the scores file excludes it",
}


class ShardStoppedError(Exception):
    """Another shard failed or the user asked to stop, so this one is not finished."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some traces of one record batch, in order, with their scores and labels."""

    batch: pa.RecordBatch
    scores: Float32[np.ndarray, " rows"]
    labels: Float32[np.ndarray, " rows"]

    def cut(self, start: int, stop: int) -> "Piece":
        return Piece(
            batch=self.batch.slice(start, stop - start),
            scores=self.scores[start:stop],
            labels=self.labels[start:stop],
        )


@dataclass(kw_only=True)
class ShardJob:
    """One trace shard and the stores that miss its samples."""

    source: TraceSource
    shard: LabeledShard
    shape: SampleShape
    stores: Sequence[SampleStore]
    spans: SpanLabels | None = None
    skipped: list[dict[str, Any]] = field(default_factory=list)

    @property
    def entry(self) -> ShardEntry:
        return self.shard.table.entry

    def max_bytes(self) -> int:
        table, chosen = self.shard.table, self.shard.labeled
        sizes = Lengths(tokens=table.tokens[chosen], answer=table.answer_tokens[chosen])
        kinds = [store.kind for store in self.stores]
        arrays = sum(int(row_bytes(kind, self.shape, sizes).sum()) for kind in kinds)
        return arrays + ("answers" in kinds) * table.text_bytes

    def run(self, stopped: Callable[[], bool], on_written: Callable[[int, int], None]) -> None:
        """Write and register the shards; raises ShardStoppedError once `stopped()` returns true.

        `on_written(samples, bytes)` is called after every record batch.
        """
        self._note_unlabeled()
        writers: dict[str, ShardWriter] = {}
        try:
            for pieces in self._gather():
                if stopped():
                    raise ShardStoppedError
                self._write(pieces, writers, on_written)
            for store in self.stores:
                made = store.finish_shard(writers[store.kind]) if writers else None
                store.enter(made, self.entry, self.skipped, self._digest_spans())
        except BaseException:
            for writer in writers.values():
                writer.abandon()
            raise

    def _write(
        self,
        pieces: Sequence[Piece],
        writers: dict[str, ShardWriter],
        on_written: Callable[[int, int], None],
    ) -> None:
        written = 0
        for store in self.stores:
            if store.kind not in writers:
                schema = sample_schema(store.kind, self.shape)
                writers[store.kind] = store.begin_shard(schema, self.entry)
            writer = writers[store.kind]
            before = writer.bytes_written
            rows = [
                build_rows(store.kind, piece.batch, piece.scores, piece.labels, self.shape)
                for piece in pieces
            ]
            writer.write(pa.concat_batches(rows))
            written += writer.bytes_written - before
        on_written(sum(piece.batch.num_rows for piece in pieces), written)

    def _gather(self) -> Iterator[list[Piece]]:
        """Pieces that form one record batch."""
        waiting: list[Piece] = []
        size = 0
        for piece in self._pieces():
            more = int(self._row_bytes(piece.batch).sum())
            if waiting and size + more > RECORD_BATCH_BYTES:
                yield waiting
                waiting, size = [], 0
            waiting.append(piece)
            size += more
        if waiting:
            yield waiting

    def _pieces(self) -> Iterator[Piece]:
        """All usable traces with a score, in order, in small pieces."""
        for first, batch in self._read_batches():
            last = first + batch.num_rows
            scores, labels = self.shard.scores[first:last], self.shard.labels[first:last]
            whole = Piece(batch=batch, scores=scores, labels=labels)
            for start, stop in _runs(~np.isnan(scores)):
                sizes = self._row_bytes(whole.cut(start, stop).batch)
                for begin, end in _cut_by_size(sizes, start):
                    piece = whole.cut(begin, end)
                    piece = replace(piece, batch=unpack_batch(piece.batch))
                    yield from self._usable(piece, first + begin)

    def _usable(self, piece: Piece, first: int) -> Iterator[Piece]:
        unusable = find_unusable(piece.batch, self.shape)
        if not unusable:
            yield piece
            return
        keep = np.ones(piece.batch.num_rows, bool)
        for row, reason in unusable.items():
            keep[row] = False
            self._skip(first + row, reason, unlabeled=False)
        for start, stop in _runs(keep):
            # Checked again: next to arrays of the wrong size, values were not checked.
            yield from self._usable(piece.cut(start, stop), first + start)

    def _read_batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Record batches of the columns that matter, with the number of their first row."""
        names, first, mapped = self.shape.columns([s.kind for s in self.stores]), 0, 0
        reader = self.source.open(self.entry)
        for index in range(reader.num_record_batches):
            if mapped > _REMAP_BYTES:
                reader, mapped = self.source.open(self.entry), 0
            batch = self._label_tokens(reader.record_batch(index).select(names))
            yield first, batch
            first += batch.num_rows
            mapped += batch.nbytes

    def _digest_spans(self) -> str | None:
        if self.spans is None:
            return None
        table, unusable = self.shard.table, {skip["record"] for skip in self.skipped}
        rows = [row for row in np.flatnonzero(self.shard.labeled).tolist() if row not in unusable]
        names = [table.question_id[row] for row in rows]
        return self.spans.digest(names, table.global_example_id[rows].tolist())

    def _label_tokens(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The traces with the labels of their answer tokens and their spans, if there are any."""
        if self.spans is None:
            return batch
        names = ("question_id", "global_example_id", TOKEN_ENDS)
        rows = list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))
        labels = [self.spans.label_tokens(*row) for row in rows]
        spans = [self.spans.of(name, number) for name, number, _ in rows]
        batch = batch.append_column(TOKEN_LABELS, pa.array(labels, pa.list_(pa.int8())))
        kind = pa.list_(pa.list_(pa.int32(), 3))
        return batch.append_column(ANSWER_SPANS, pa.array(spans, kind))

    def _row_bytes(self, batch: pa.RecordBatch) -> np.ndarray:
        # The same for all kinds, so that their record batches contain the same rows.
        kinds, sizes = filter(self.shape.can_make, KINDS), measure_lengths(batch)
        return np.max([row_bytes(kind, self.shape, sizes) for kind in kinds], axis=0)

    def _note_unlabeled(self) -> None:
        for row in np.flatnonzero(~self.shard.labeled).tolist():
            labels = {"refused": self.shard.refused, "excluded": self.shard.excluded}
            label = next((name for name, rows in labels.items() if rows[row]), "")
            self._skip(row, _REASONS[label], unlabeled=True, label=label)

    def _skip(self, row: int, reason: str, *, unlabeled: bool, label: str = "") -> None:
        self.skipped.append(
            {
                "file": self.entry.file,
                "record": row,
                "question_id": self.shard.table.question_id[row],
                "reason": reason,
                "unlabeled": unlabeled,
                **({"label": label} if label else {}),
            }
        )


def _runs(keep: Bool[np.ndarray, " rows"]) -> list[tuple[int, int]]:
    """Where consecutive rows are kept: (start, stop) of every run."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], keep, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _cut_by_size(sizes: np.ndarray, first: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of pieces of at most RECORD_BATCH_BYTES, and of at least one row."""
    start = total = 0
    for row, size in enumerate(sizes.tolist()):
        if row > start and total + size > RECORD_BATCH_BYTES:
            yield first + start, first + row
            start, total = row, 0
        total += size
    yield first + start, first + len(sizes)


def run_jobs(
    jobs: Sequence[ShardJob],
    shards: Sequence[LabeledShard],
    config: PreprocessConfig,
    reporter: Reporter,
) -> int:
    """Write the missing shards, several at a time; returns the number of samples."""
    if not jobs:
        return 0
    stop, lock, made = threading.Event(), threading.Lock(), 0

    def on_written(samples: int, written: int) -> None:
        nonlocal made
        with lock:
            made += samples
            reporter(WorkAdvanced(count=samples, written_bytes=written))

    workers = config.count_workers(len(jobs))
    with (
        report_work(reporter, describe_work(jobs, shards)),
        ThreadPoolExecutor(workers, thread_name_prefix="clew-shard") as pool,
    ):
        futures = [pool.submit(job.run, stop.is_set, on_written) for job in jobs]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            # Ctrl-C, or one shard failed: the others stop at their next record batch.
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return made


def describe_work(jobs: Sequence[ShardJob], shards: Sequence[LabeledShard]) -> WorkStarted:
    """What is to be done, of how much."""
    planned = sum(int(shard.labeled.sum()) for shard in shards)
    left = sum(int(job.shard.labeled.sum()) for job in jobs)
    size = bytes_text(sum(job.max_bytes() for job in jobs))
    return WorkStarted(
        noun="samples",
        planned=planned,
        done=planned - left,
        estimate=f"{left:,} samples to create: at most {size} on disk",
    )


def refuse_if_disk_too_small(config: PreprocessConfig, jobs: Sequence[ShardJob]) -> None:
    """Raises DiskFullError if the remaining work does not fit on disk; on its way to a URL, that is
    as many shards as are written at once."""
    sizes = sorted((job.max_bytes() for job in jobs), reverse=True)
    if isinstance(config.out, UrlPath):
        refuse_full_disk(
            scratch_root(),
            sum(sizes[: config.count_workers(len(jobs))]),
            what="on their way to a URL, shards may take up to",
            advice="Free some space, set TMPDIR to a folder on a larger disk, or use fewer "
            "`workers`.",
        )
        return
    refuse_full_disk(
        config.out,
        sum(sizes),
        what="the run may write up to",
        advice="Free some space, choose another `out`, or write less (`node_dim`, `top_k`, "
        "`graphs=False`, `heads=False`).",
    )
