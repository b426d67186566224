"""Capture one shard: answer its questions batch by batch; a thread in the background converts them
to Arrow, hashes and writes them."""

import functools
import operator
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.base.errors import ClewError
from clew.base.memory import run_in_halves
from clew.base.progress import Meter, Note, Reporter, WorkAdvanced, WorkKept
from clew.base.texts import counted, shortened
from clew.hallucination.capture.job import Job, full_bytes, too_large
from clew.hallucination.capture.store import TraceStore
from clew.hallucination.llm.decoder import answer_with_beams
from clew.hallucination.llm.memory import make_batches
from clew.hallucination.llm.observe import FullRecord, full_columns, record_fully
from clew.hallucination.llm.prompts import find_token_ends
from clew.hallucination.llm.requests import Finished
from clew.hallucination.questions.given import GivenAnswer
from clew.hallucination.traces.compact import reduce_heads, start_columns
from clew.hallucination.traces.packed import find_finite
from clew.hallucination.traces.schema import (
    ANSWER_PARTS,
    CONTEXT,
    GIVEN_SCORE,
    GIVEN_SPANS,
    GROUP,
    TOKEN_ENDS,
    TraceShape,
    build_record_batch,
    full_fields,
)
from clew.storage.leases import Claim
from clew.storage.reader import ShardReader
from clew.storage.repair import commit_shard
from clew.storage.uploading import open_writer
from clew.storage.writer import ShardWriter

# Bytes of full traces per record batch.
_FULL_BATCH_BYTES = 1 << 28
# Global ids of questions, their answers, and what makes the record batch of their traces.
_Answered = tuple[Sequence[int], list[Finished], Callable[[], pa.RecordBatch]]


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


class ShardCapture:
    """Captures one shard; every generation batch is written when it is finished."""

    def __init__(
        self,
        job: Job,
        claim: Claim,
        reporter: Reporter,
        should_stop: Callable[[], bool],
        background: Background,
        before_batch: Callable[[], None] = lambda: None,
    ) -> None:
        self.job, self.claim, self.number = job, claim, claim.number
        self.reporter, self.should_stop = reporter, should_stop
        self.background, self.before_batch = background, before_batch
        self.rows = job.store.shard_rows(claim.number)

    def run(self) -> int:
        """Capture the missing rows; returns how many. Ends early if asked to stop, or if another
        worker may have taken the shard over."""
        writer = open_writer(
            self.job.store.path, self.number, self.job.schema, id_column="global_example_id"
        )
        if writer.recovered_ids:
            kept = len(writer.recovered_ids.intersection(self.rows))
            self.reporter(WorkKept(noun="traces", count=kept))
        made = 0
        planned = len(set(self.rows) - writer.recovered_ids)
        try:
            for batch in self._batches():
                missing = [i for i in batch if i not in writer.recovered_ids]
                if not missing:
                    continue
                self.before_batch()
                for make in self._capture(batch, set(missing)):
                    self.background.do(functools.partial(write_batch, writer, make))
                made += len(missing)
                if self._has_to_end(is_last=made == planned):
                    self.background.wait()
                    writer.abandon()
                    self.job.store.release(self.claim)
                    return made
            finish = functools.partial(finish_shard, self.job.store, writer, self.claim)
            self.background.do(finish)
        except BaseException:
            self.background.close()
            writer.abandon()
            raise
        return made

    def _has_to_end(self, *, is_last: bool) -> bool:
        if is_last or self.should_stop():
            return not is_last
        if self.claim.lease.is_held:
            return False
        sentence = (
            f"shard {self.number} is left to other workers: its lease was not renewed in time"
        )
        self.reporter(Note(sentence))
        return True

    def _batches(self) -> Iterator[list[int]]:
        """Generation batches as lists of global ids; the same ones in every run."""
        lengths = [self.job.rows.lengths[i] for i in self.rows]
        prompts = [self.job.rows.prompts[i] for i in self.rows if self.job.config.is_given]
        batches = make_batches(lengths, self.job.plan, self.job.config.new_tokens, prompts)
        return ([self.rows[i] for i in batch] for batch in batches)

    def _capture(self, ids: list[int], wanted: set[int]) -> Iterator[Callable[[], pa.RecordBatch]]:
        """Answer and record a batch; the writer's thread converts it to Arrow."""
        for part, answers, make in self._answer_all(ids):
            if self.job.config.keep == "compact" and wanted.issuperset(part):
                yield make
                continue
            keep = [row for row, i in enumerate(part) if i in wanted]
            some = make().take(pa.array(keep, pa.int64()))
            if self.job.config.keep == "full":
                sequences = [[*self.job.rows.prompts[part[r]], *answers[r].tokens] for r in keep]
                yield from self._add_full(sequences, some)
            else:
                yield lambda batch=some: batch  # type: ignore[misc]

    def _answer_all(self, ids: list[int]) -> Iterator[_Answered]:
        """Answer a batch; if it does not fit in device memory, in halves, with a note."""
        rows = self.job.plan.rows
        for start in range(0, len(ids), rows):
            yield from run_in_halves(self._answer, ids[start : start + rows], self._shrink)

    def _answer(self, ids: Sequence[int]) -> _Answered:
        """Some answers, and what converts them and their record to Arrow."""
        job, rows = self.job, self.job.rows
        prompts, questions = [rows.prompts[i] for i in ids], [rows.questions[i] for i in ids]
        given = [rows.answers[i] for i in ids]
        meter = self._meter([*map(operator.add, prompts, given)])
        with job.decoder.watched(meter.add):
            # Draws first, so that the record of the answers does not have to wait in device memory.
            samples = self._sample(prompts, [question.id for question in questions])
            compared = job.checks.compare(
                job.decoder.packed, [question.question for question in questions], samples, job.plan
            )
            if job.config.is_given:
                answers, reduced = job.decoder.read(prompts, [(one, "end") for one in given])
            elif job.config.num_beams > 1:
                answers, reduced = answer_with_beams(job.decoder, prompts, job.config.num_beams)
            else:
                answers, reduced = job.decoder.answer(prompts)
            tokens = [[*p, *a.tokens] for p, a in zip(prompts, answers, strict=True)]
            evaluated = job.checks.evaluate(job.decoder.packed, tokens, job.plan)
        meter.finish()
        if not job.config.is_given:
            self._show_examples([q.question for q in questions], [a.text for a in answers])
        by_head, sizes = None, ([*map(len, tokens)], [*map(len, prompts)])
        if not job.decoder.shape.attention_layers:
            by_head = {}
        elif job.eigenvalues:
            by_head = reduce_heads(reduced, *sizes, job.eigenvalues)
        copied = start_columns(reduced, sizes[0], by_head, packed=job.packed)

        def make() -> pa.RecordBatch:
            arrays = {**copied(), **evaluated, **compared}
            return self._compact_batch(ids, answers, samples, arrays)

        return ids, answers, make

    def _show_examples(self, questions: Sequence[str], answers: Sequence[str]) -> None:
        """The first answers of a run, so that a wrong prompt is seen before it has taken hours."""
        shown, self.job.examples = self.job.examples, 0
        for question, answer in islice(zip(questions, answers, strict=True), shown):
            self.reporter(Note(f"for example: {shortened(question)} -> {shortened(answer)}"))

    def _meter(self, prompts: Sequence[Sequence[int]]) -> Meter:
        """What is passed for a batch: the prompts, for drawn answers once more, all tokens of the
        answers, and what else they take."""
        config, rows = self.job.config, len(prompts)
        prompt = max(map(len, prompts)) - self.job.rows.shared_tokens
        tokens = prompt * (2 if config.draws else 1) + config.new_tokens * (1 + config.draws)
        for one in self.job.extra_work:
            tokens += prompt + config.new_tokens + one.tokens
        return Meter(self.reporter, count=rows, units=rows * tokens)

    def _sample(self, prompts: Sequence[list[int]], names: Sequence[str]) -> list[list[str]]:
        """The texts of each question's drawn answers, empty if none are requested."""
        config = self.job.config
        if not config.draws:
            return []
        found = self.job.decoder.draw(
            prompts, names, self.job.plan, count=config.draws, temperature=config.draw_temperature
        )
        return [[one.text.strip() for one in some] for some in found]

    def _shrink(self, ids: Sequence[int], error: Exception) -> None:
        """Use smaller batches from now on; raises ClewError if not even one prompt fits."""
        job = self.job
        if len(ids) == 1:
            raise ClewError(
                f"question {job.rows.questions[ids[0]].id} with {job.rows.lengths[ids[0]]} prompt "
                f"tokens does not fit in the memory of {job.decoder.device}, even alone. Use "
                '`quantize="4bit"`, a lower `max_new_tokens`, or a device with more memory.'
            ) from error
        job.plan = replace(job.plan, rows=-(-len(ids) // 2))
        sentence = f"out of device memory: continuing with {job.plan.rows} prompts at a time"
        self.reporter(Note(sentence))
        job.store.add_notes([f"shard {self.number}: {sentence}"])

    def _compact_batch(
        self,
        ids: Sequence[int],
        answers: Sequence[Finished],
        samples: list[list[str]],
        arrays: dict[str, np.ndarray],
    ) -> pa.RecordBatch:
        job = self.job
        questions = [job.rows.questions[i] for i in ids]
        prompts = [job.rows.prompts[i] for i in ids]
        columns: dict[str, Any] = {
            "global_example_id": ids,
            "example_id": [i - self.rows.start for i in ids],
            "batch_number": [self.number] * len(ids),
            "question_id": [q.id for q in questions],
            "question": [q.question for q in questions],
            "category": [q.category for q in questions],
            "accepted_answers": [list(q.answers) for q in questions],
            "answer": [
                q.answer if job.config.is_given else a.text.strip()
                for q, a in zip(questions, answers, strict=True)
            ],
            "stop_reason": [a.ended for a in answers],
            "tokens": [[*p, *a.tokens] for p, a in zip(prompts, answers, strict=True)],
            "prompt_length": [len(p) for p in prompts],
            "token_logprobs": [a.logprobs for a in answers],
            "token_entropies": [a.entropies for a in answers],
            **arrays,
        }
        if CONTEXT in job.schema.names:
            columns[CONTEXT] = [q.context for q in questions]
        if ANSWER_PARTS in job.schema.names:
            columns[ANSWER_PARTS] = [list(q.parts) for q in questions]
        if job.config.is_given:
            columns |= _given_columns(questions)
        if TOKEN_ENDS in job.schema.names:
            clean_up = False if job.config.is_given else None
            ends = [find_token_ends(job.tokenizer, a.tokens, clean_up=clean_up) for a in answers]
            columns[TOKEN_ENDS] = np.array([end for one in ends for end in one], np.int32)
        if samples:
            columns["samples"] = samples
        answer_counts = [len(a.tokens) for a in answers]
        token_counts = [len(tokens) for tokens in columns["tokens"]]
        schema = pa.schema([field for field in job.schema if field.name in columns])
        return build_record_batch(schema, columns, token_counts, answer_counts)

    def _add_full(
        self, sequences: Sequence[Sequence[int]], compact: pa.RecordBatch
    ) -> Iterator[Callable[[], pa.RecordBatch]]:
        """Run whole sequences through the model again, a few at a time, and add every state and
        attention map."""
        decoder = self.job.decoder
        record_some = functools.partial(record_fully, decoder.model, decoder.observer)
        for start, stop in _split_by_bytes(sequences, decoder.shape, _FULL_BATCH_BYTES):
            for record in run_in_halves(record_some, sequences[start:stop], self._refuse_large):
                some = compact.slice(start, len(record.lengths))
                start += len(record.lengths)
                yield functools.partial(self._full_batch, record, some)

    def _refuse_large(self, sequences: Sequence[Sequence[int]], error: Exception) -> None:
        if len(sequences) == 1:
            what = f"the full trace of {len(sequences[0])} tokens"
            raise too_large(what, self.job.decoder.device) from error

    def _full_batch(self, record: FullRecord, compact: pa.RecordBatch) -> pa.RecordBatch:
        fields = pa.schema(full_fields(self.job.decoder.shape))
        no_answers = [0] * len(record.lengths)
        full = build_record_batch(fields, full_columns(record), record.lengths, no_answers)
        arrays = [*compact.columns, *full.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.job.schema)


def _given_columns(questions: Sequence[GivenAnswer]) -> dict[str, list[Any]]:
    """What the file says of each answer."""
    return {
        GIVEN_SCORE: [None if q.hallucinated is None else 1.0 - q.hallucinated for q in questions],
        GIVEN_SPANS: [q.spans for q in questions],
        GROUP: [q.group for q in questions],
    }


def _split_by_bytes(
    sequences: Sequence[Sequence[int]], shape: TraceShape, limit: int
) -> Iterator[tuple[int, int]]:
    start = size = 0
    for index, sequence in enumerate(sequences):
        needed = full_bytes(shape, len(sequence))
        if index > start and size + needed > limit:
            yield start, index
            start, size = index, 0
        size += needed
    if sequences:
        yield start, len(sequences)


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
        finite = find_finite(batch.column("last_hidden"), batch.schema.field("last_hidden"))
        empty += [i for i, answer in zip(ids, answers, strict=True) if not answer]
        broken += [i for i, fine in zip(ids, finite, strict=True) if not fine]
    notes = []
    if empty:
        notes.append(f"shard {number}: {counted(len(empty), 'empty answer')}: {', '.join(empty)}")
    if broken:
        traces = counted(len(broken), "trace")
        notes.append(f"shard {number}: NaN or infinity in {traces}: {', '.join(broken)}")
    return notes
