"""Background work: converting batches to Arrow, hashing, writing and closing shards."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from clew.base.progress import Reporter, WorkAdvanced
from clew.base.texts import counted
from clew.hallucination.capture.store import TraceStore
from clew.storage import ShardReader, ShardWriter, commit_shard
from clew.storage.claims import Claim


class Background:
    """A thread that converts batches to Arrow, writes and syncs them while the next are captured.
    At most two tasks wait behind the running one, so memory stays bounded. An error in a task is
    raised at the next call, and no later task is started: a shard whose last rows could not be
    written must not be closed.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="clew-writer")
        self._pending: deque[Future[None]] = deque()
        self._failed = False

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def do(self, task: Callable[[], WorkAdvanced]) -> None:
        self.wait(leaving=2)
        self._pending.append(self._thread.submit(self._run, task))

    def wait(self, leaving: int = 0) -> None:
        """Wait until at most `leaving` tasks are unfinished; raises what any of them raised."""
        while self._pending and (len(self._pending) > leaving or self._pending[0].done()):
            self._pending.popleft().result()

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _run(self, task: Callable[[], WorkAdvanced]) -> None:
        if self._failed:
            raise CancelledError
        try:
            self._reporter(task())
        except BaseException:
            self._failed = True
            raise


def write_batch(writer: ShardWriter, make: Callable[[], pa.RecordBatch]) -> WorkAdvanced:
    before = writer.bytes_written
    with _abandoned_on_failure(writer):
        batch = make()
        writer.write(batch)
    tokens = int(np.sum(batch.column("tokens").value_lengths().to_numpy()))
    written = writer.bytes_written - before
    return WorkAdvanced(count=batch.num_rows, tokens=tokens, written_bytes=written)


@contextmanager
def _abandoned_on_failure(writer: ShardWriter) -> Iterator[None]:
    try:
        yield
    except BaseException:
        writer.abandon()
        raise


def finish_shard(store: TraceStore, writer: ShardWriter, claim: Claim) -> WorkAdvanced:
    """Close a shard: from now on it counts as finished."""
    before = writer.bytes_written
    with _abandoned_on_failure(writer):
        entry = writer.complete()
        notes = _note_oddities(writer.part, writer.batch_number)
        commit_shard(store.path, writer, entry, notes)
    store.release(claim)
    return WorkAdvanced(count=0, written_bytes=writer.bytes_written - before)


def _note_oddities(shard: Path, number: int) -> list[str]:
    """What a user of the traces should know: empty answers, NaN."""
    reader = ShardReader(shard)
    empty: list[str] = []
    broken: list[str] = []
    for index in range(reader.num_record_batches):
        batch = reader.record_batch(index)
        ids = batch.column("question_id").to_pylist()
        answers = batch.column("answer").to_pylist()
        states = batch.column("last_hidden").flatten().flatten().to_numpy()
        # NaN and Inf are the float16 numbers whose exponent bits are all ones.
        bits = states.view(np.uint16).reshape(len(ids), -1) & 0x7FFF
        finite = bits.max(1) < 0x7C00
        empty += [i for i, answer in zip(ids, answers, strict=True) if not answer]
        broken += [i for i, fine in zip(ids, finite, strict=True) if not fine]
    notes = []
    if empty:
        notes.append(f"shard {number}: {counted(len(empty), 'empty answer')}: {', '.join(empty)}")
    if broken:
        traces = counted(len(broken), "trace")
        notes.append(f"shard {number}: NaN or infinity in {traces}: {', '.join(broken)}")
    return notes
