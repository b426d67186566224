"""Prepare a capture: model, prompts, store, basis, a check that batching is correct, and a plan of
its batches, disk space, memory and time."""

import statistics
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import psutil
import pyarrow as pa
import torch
from transformers import PreTrainedModel

from clew.base.commands import select
from clew.base.errors import ClewError, InputError
from clew.base.memory import free_memory, is_out_of_memory, none_if_out_of_memory
from clew.base.progress import Note, Reporter
from clew.base.texts import bytes_text, duration_text
from clew.hallucination.capture.config import ExtractConfig
from clew.hallucination.capture.store import (
    BASIS_LENGTH,
    MACHINE_KEY,
    TraceStore,
    fit_on_questions,
    read_other_basis,
)
from clew.hallucination.llm.checked import CheckMemory
from clew.hallucination.llm.decoder import MAX_ROWS, Decoder, settle_decoder
from clew.hallucination.llm.device_map import free_gpu_memory, model_device
from clew.hallucination.llm.memory import (
    BatchPlan,
    ExtraWork,
    record_bytes,
    row_bytes,
)
from clew.hallucination.llm.models import (
    LoadedModel,
    context_tokens,
    describe_model,
)
from clew.hallucination.llm.observe import ModelObserver
from clew.hallucination.llm.prompts import (
    CONTEXT,
    Encoder,
    Prompt,
    choose_prompt,
    shared_prefix,
)
from clew.hallucination.llm.recording import Recording
from clew.hallucination.llm.self_evaluation import Entailment, SelfChecks, SelfEvaluation
from clew.hallucination.llm.vllm_decoder import VllmDecoder
from clew.hallucination.questions import QuestionSet
from clew.hallucination.traces.compact import COLUMNS, STATES
from clew.hallucination.traces.schema import (
    ANSWER_HIDDEN,
    ANSWERS_KEY,
    BLOCK,
    EIGENVALUES,
    GIVEN,
    MOST_EIGENVALUES,
    PACKED,
    Keep,
    TraceShape,
    trace_schema,
)
from clew.storage.disk_list import DiskList
from clew.storage.manifest import Manifest
from clew.storage.origin import describe_in_schema

# Skipped questions that are reported one by one; the manifest lists all.
_MAX_SAID = 10
CPU_ROWS, _CPU_TOKENS = 128, 1 << 14
# Share of the free device memory that a generation batch may take.
_MEMORY_SHARE = 0.6
_TEXT_BYTES = 600
_TOKEN_TEXT_BYTES = 8
_TIMED_ROWS = 24
# Generated to compare batched with plain passes where all answers are given.
_CHECK_TOKENS = 2
# Of these, a few are passed to compare batched with plain passes.
_CHECKED_ROWS = 1000
# Questions that are tokenized at once.
_ENCODED_ROWS = 1000
# The most tokens that are generated to time a batch.
_TIMED_TOKENS = 8
# Of a given answer and its prompt, the tokens that are passed to fit a basis, and those of the
# prompt's end that it is fitted on.
_BASIS_MOST, _BASIS_PROMPT = 2048, 64
# A full trace must fit in memory; this is its maximum size.
MAX_FULL_TRACE_BYTES = 1 << 30


@dataclass(kw_only=True)
class EncodedRows:
    """What is captured, in order: questions, the tokens of their prompts, and of their answers
    where those are given. `lengths` are the tokens of both."""

    questions: DiskList[Any] = field(default_factory=DiskList)
    prompts: DiskList[list[int]] = field(default_factory=DiskList)
    answers: DiskList[list[int]] = field(default_factory=DiskList)
    lengths: "array[int]" = field(default_factory=lambda: array("l"))

    @cached_property
    def shared_tokens(self) -> int:
        """What all prompts start with; a batch passes it once."""
        return len(shared_prefix(self.prompts))

    def add(self, question: Any, prompt: list[int], answer: list[int]) -> None:
        self.questions.append(question)
        self.prompts.append(prompt)
        self.answers.append(answer)
        self.lengths.append(len(prompt) + len(answer))

    def timed(self, index: int) -> list[int]:
        """What is passed before tokens are generated to time that: the prompt, and an answer that
        is given, as far as there certainly is room for more."""
        prompt, answer = self.prompts[index], self.answers[index]
        return [*prompt, *answer][: -_TIMED_TOKENS if answer else None] or prompt[:1]

    def answered(self, tokenizer: Any) -> Iterator[tuple[list[int], int]]:
        """The tokens of prompts with an answer, and where those to fit a basis on begin. Of an
        answer that is given, all of it, with the end of its prompt: a long source would leave no
        room. Without one, the first accepted answer."""
        for question, prompt, answer in zip(
            self.questions, self.prompts, self.answers, strict=True
        ):
            if answer:
                yield [*prompt, *answer][:_BASIS_MOST], max(0, len(prompt) - _BASIS_PROMPT)
                continue
            text = f" {question.answers[0]}" if question.answers else ""
            accepted = tokenizer.encode(text, add_special_tokens=False) if text else []
            yield [*prompt, *accepted][:BASIS_LENGTH], 0


@dataclass(kw_only=True)
class Job:
    """Everything that capturing a shard needs."""

    config: ExtractConfig
    store: TraceStore
    rows: EncodedRows
    tokenizer: Any
    decoder: Decoder
    plan: BatchPlan
    eigenvalues: int  # 0: the diagonals of every token instead
    packed: bool  # states in 8 bits
    schema: pa.Schema
    checks: SelfChecks
    examples: int = 3  # answers to show as they come

    @property
    def extra_work(self) -> list[ExtraWork]:
        """What answers take besides answering and drawing."""
        return self.checks.extra_work(self.decoder.shape, self.config.new_tokens)


def prepare_job(
    config: ExtractConfig,
    questions: QuestionSet,
    loaded: LoadedModel,
    store: TraceStore,
    reporter: Reporter,
) -> Job:
    """Open the store and check the capture; raises ClewError if it is not possible."""
    observer, in_vllm = ModelObserver(loaded.model), config.engine == "vllm"
    sizes = {"node_dim": config.node_dim, "edges_per_token": config.edges_per_token}
    shape = select(TraceShape, observer, **sizes)
    if in_vllm:
        shape = replace(shape, without_attention=tuple(range(shape.layers)))
    prompt = choose_prompt(
        loaded.tokenizer,
        config.prompt,
        config.chat,
        questions.instruction or "",
        with_context=bool(questions.contexts_sha256),
    )
    if questions.contexts_sha256 and prompt.context_template is None:
        reporter(Note(f"`prompt` does not contain {CONTEXT}: the questions' contexts are not used"))
        questions = questions.without_contexts()
    checks = SelfChecks(
        loaded,
        chat=prompt.chat,
        evaluation=SelfEvaluation.of_model(shape.layers) if config.self_evaluation else None,
        entailment=Entailment() if config.entailment else None,
        draws=config.draws,
    )
    rows, skipped = _encode_questions(config, questions, prompt, loaded, checks, shape)
    plan = plan_batches(config, loaded.model, shape, rows.lengths, checks)
    model = describe_model(config.model, loaded.model, config.quantize)
    settings = {"model": model, **_describe_settings(config, questions, loaded, prompt, plan)}
    other = None
    if config.basis is not None:
        other, settings["basis"] = read_other_basis(config.basis, model, shape)
    store.open(settings=settings | checks.describe(), rows=len(rows.lengths), skipped=skipped)
    if config.generation_batch is None:
        plan = _stored_plan(store.manifest, plan)
    _report_excluded(skipped, reporter)
    memory = CheckMemory.of_model(loaded.model)
    basis = store.open_basis(
        lambda: fit_on_questions(
            loaded,
            observer,
            rows.answered(loaded.tokenizer),
            rows.shared_tokens,
            shape.node_dim,
            reporter,
            planned=len(rows.lengths),
            memory=memory,
        ),
        other,
    )
    eigenvalues = store.manifest.settings.get(EIGENVALUES, 0)
    packed = store.manifest.settings.get(PACKED, False)
    schema = trace_schema(
        shape,
        config.keep,
        answer_hidden=_has_answer_hidden(store.manifest, reporter),
        eigenvalues=eigenvalues,
        packed=packed,
        samples=config.draws > 0,
        context=prompt.context_template is not None,
        parts=questions.has_parts,
        given=config.is_given,
        evaluation=checks.shape,
        kinds=observer.kinds,
    )
    recording = Recording(shape=shape, basis=basis, columns=STATES if in_vllm else COLUMNS)
    make: type[Decoder] = VllmDecoder if in_vllm else Decoder
    decoder = make(
        loaded,
        recording,
        cut=config.cut,
        max_new_tokens=config.new_tokens or _CHECK_TOKENS,
        max_rows=max(plan.rows, MAX_ROWS),
    )
    same_length = not in_vllm and settle_decoder(
        decoder,
        rows.prompts[:_CHECKED_ROWS],
        reporter,
        name=config.model,
        memory=memory,
    )
    return Job(
        config=config,
        store=store,
        rows=rows,
        tokenizer=loaded.tokenizer,
        decoder=decoder,
        plan=replace(plan, same_length=same_length),
        eigenvalues=eigenvalues,
        packed=packed,
        schema=describe_in_schema(schema, store.manifest),
        checks=checks,
    )


def _has_answer_hidden(manifest: Manifest, reporter: Reporter) -> bool:
    """Whether the store has the answers' mean states; a store started by an earlier version
    continues without them, so that all shards have the same columns."""
    answer_hidden = manifest.settings.get(ANSWER_HIDDEN, False)
    if not answer_hidden:
        reporter(
            Note(
                f"this store was started by an older version of clew without {ANSWER_HIDDEN} "
                "and continues without it (choose another `out` for a store that has it)"
            )
        )
    return answer_hidden


def _describe_settings(
    config: ExtractConfig,
    questions: QuestionSet,
    loaded: LoadedModel,
    prompt: Prompt,
    plan: BatchPlan,
) -> dict[str, Any]:
    """What the manifest records about a run besides its model, and what a later run is compared
    with."""
    return {
        "prompt": prompt.describe(),
        **({ANSWERS_KEY: GIVEN} if config.is_given else {"generation": config.describe()}),
        "questions": {
            "name": questions.name,
            "sha256": questions.sha256,
            **({"contexts_sha256": sha256} if (sha256 := questions.contexts_sha256) else {}),
        },
        "keep": config.keep,
        **({} if config.engine == "clew" else {"engine": config.engine}),
        ANSWER_HIDDEN: True,
        EIGENVALUES: MOST_EIGENVALUES,
        PACKED: config.state_bits == 8,
        "node_dim": config.node_dim,
        "edges_per_token": config.edges_per_token,
        MACHINE_KEY: {
            "device": str(loaded.device),
            "threads": torch.get_num_threads(),
            "generation_batch": plan.rows,
            "generation_tokens": plan.tokens,
        },
    }


def _report_excluded(skipped: Sequence[dict[str, str]], reporter: Reporter) -> None:
    for entry in skipped[:_MAX_SAID]:
        reporter(Note(f"excluded: {entry['where']}: {entry['reason']}"))
    if len(skipped) > _MAX_SAID:
        reporter(Note(f"excluded: {len(skipped) - _MAX_SAID:,} more, listed in the manifest"))


def _stored_plan(manifest: Manifest, plan: BatchPlan) -> BatchPlan:
    """The plan that the store was started with: the same batches give the same rounding."""
    machine = manifest.settings.get(MACHINE_KEY, {})
    if not machine.get("generation_batch"):
        return plan
    return BatchPlan(rows=machine["generation_batch"], tokens=machine["generation_tokens"])


def _encode_questions(
    config: ExtractConfig,
    questions: QuestionSet,
    prompt: Prompt,
    loaded: LoadedModel,
    checks: SelfChecks,
    shape: TraceShape,
) -> tuple[EncodedRows, list[dict[str, str]]]:
    """The questions that can be captured, with their tokens, and the skipped ones with the reason:
    those that are too long, and malformed records."""
    most, new, behind = context_tokens(loaded.model), config.new_tokens, checks.extra_tokens

    def why_not(prompt_tokens: int, answer_tokens: int, question: Any) -> str | None:
        tokens = prompt_tokens + answer_tokens + new
        if tokens + behind > most:
            long = "question" if question.context is None else "question or its context"
            more = f", with {behind} tokens of self-evaluation," if behind else ""
            then, fix = f"{new} new tokens", "lower `max_new_tokens`"
            if config.is_given:
                then, fix = f"{answer_tokens} tokens of the answer", "split the answer"
            return (
                f"{prompt_tokens} prompt tokens and {then}{more} exceed the model's "
                f"limit of {most}: shorten the {long}, or {fix}"
            )
        size = full_bytes(shape, tokens) if config.keep == "full" else 0
        if size > MAX_FULL_TRACE_BYTES:
            return (
                f"its full trace of {tokens} tokens would take {bytes_text(size)}; use "
                f'`keep="compact"` for it'
            )
        return None

    rows, encoder = EncodedRows(), Encoder(loaded.tokenizer, prompt, most)
    skipped = [{"where": s.where, "reason": s.reason} for s in questions.skipped]
    for question, tokens, answer in _encode(encoder, questions.questions, config):
        reason = tokens if isinstance(tokens, str) else why_not(len(tokens), len(answer), question)
        if reason is not None:
            skipped.append({"where": f"question {question.id:.80}", "reason": reason})
        elif isinstance(tokens, list):
            rows.add(question, tokens, answer)
    if not rows.lengths:
        first = skipped[len(questions.skipped)]
        raise InputError(
            f"none of the {len(questions.questions)} questions of {questions.name} can be "
            f"captured. The first, {first['where']}: {first['reason']}."
        )
    return rows, skipped


def _encode(
    encoder: Encoder, questions: Sequence[Any], config: ExtractConfig
) -> Iterator[tuple[Any, list[int] | str, list[int]]]:
    """Questions with the tokens of their prompts, or why there are none, and of their answers if
    those are given."""
    for start in range(0, len(questions), _ENCODED_ROWS):
        some = questions[start : start + _ENCODED_ROWS]
        prompts = encoder.tokenize([one.question for one in some], [one.context for one in some])
        answers: Iterable[list[int]] = ([] for _ in some)
        if config.is_given:
            answers = encoder.encode_answers([one.answer for one in some])
        yield from zip(some, prompts, answers, strict=True)


def plan_batches(
    config: ExtractConfig,
    model: PreTrainedModel,
    shape: TraceShape,
    lengths: Sequence[int],
    checks: SelfChecks,
) -> BatchPlan:
    """Plan the generation batches: as many rows as requested or as fit in device memory, dividing a
    shard evenly. `lengths` are the tokens of the prompts, with those of answers that are given."""
    # A length that all but the longest prompts stay below.
    typical = max(lengths, default=1)
    if len(lengths) >= 20:
        typical = int(statistics.quantiles(lengths, n=20)[-1])
    width = typical + config.new_tokens + checks.extra_tokens
    rows, shard = config.generation_batch, config.shard_size
    if rows is None:
        rows = CPU_ROWS
        if model_device(model).type == "cuda":
            free = int(free_gpu_memory(model) * _MEMORY_SHARE)
            rows = max(1, min(MAX_ROWS, free // row_bytes(model, shape, width)))
        elif config.is_given:  # reading long texts gains nothing from many at once
            rows = max(1, min(CPU_ROWS, _CPU_TOKENS // width))
        if rows < shard:
            rows = -(-shard // -(-shard // rows))
        rows = min(rows, shard)
    return BatchPlan(rows=rows, tokens=2 * rows * max(64, width))


Number = TypeVar("Number", int, np.ndarray)


def trace_bytes(
    shape: TraceShape, keep: Keep, state_bits: int, tokens: Number, sampled_tokens: int = 0
) -> Number:
    """Bytes on disk of one trace with that many tokens, including the text of drawn answers."""
    states = shape.layers * (2 * shape.dim + tokens * shape.node_dim)
    of_states = 2 * states if state_bits == 16 else states * (BLOCK + 2) // BLOCK
    by_head = 2 * shape.heads * (4 + MOST_EIGENVALUES)
    of_attention = shape.attention_layers * (by_head + tokens * 4 * shape.edges_per_token)
    size = of_states + of_attention
    if keep == "full":
        size += full_bytes(shape, tokens)
    return size + _TEXT_BYTES + 8 * tokens + _TOKEN_TEXT_BYTES * sampled_tokens


def full_bytes(shape: TraceShape, tokens: Number) -> Number:
    of_states, of_attention = shape.layers * shape.dim, shape.attention_layers * shape.heads
    return 2 * tokens * (of_states + of_attention * tokens)


def estimate_run(job: Job, ids: Sequence[int]) -> tuple[str, int]:
    """What the remaining work takes, in words and in bytes on disk: time one batch and extrapolate
    to the rows of these ids, assuming answers of maximum length."""
    decoder, plan, config = job.decoder, job.plan, job.config
    shape, new, draws = decoder.shape, config.new_tokens, config.draws
    lengths = np.asarray(job.rows.lengths)[np.asarray(ids)]
    tokens, middle = lengths + new, np.sort(lengths)[len(lengths) // 2]
    size = int(np.sum(trace_bytes(shape, config.keep, config.state_bits, tokens, draws * new)))
    size += len(tokens) * sum(one.bytes for one in job.extra_work)
    longest = int(tokens.max())
    records = plan.rows * record_bytes(shape, longest), plan.tokens * record_bytes(shape, 1)
    short = (i for i in ids if job.rows.lengths[i] <= middle)
    prompt_seconds, step_seconds = _time_batch(
        job, list(islice(short, plan.rows)), min(plan.rows, len(ids))
    )
    # With what the timed batch took.
    memory = psutil.Process().memory_info().rss + 3 * min(records)
    # Drawn answers pass their prompts once more, in batches of the same size as the answers.
    seconds = float(lengths.sum()) * prompt_seconds * (2 if draws else 1)
    seconds += -(-len(tokens) // plan.rows) * new * step_seconds * (1 + draws)
    further = (int(tokens.sum()) + one.tokens * len(tokens) for one in job.extra_work)
    seconds += sum(further) * prompt_seconds
    text = (
        f"{len(tokens):,} traces to extract: at most {duration_text(seconds)}, "
        f"{bytes_text(size)} on disk, about {bytes_text(memory)} of memory"
    )
    return text, size


def _time_batch(job: Job, ids: Sequence[int], rows: int) -> tuple[float, float]:
    """Seconds per prompt token, and seconds per step of a batch of `rows`; from as much of it as
    fits in device memory, scaled up."""
    decoder = job.decoder
    on_cpu = decoder.device.type == "cpu"
    # On a CPU the time of a step grows with its rows, so a few are enough: a tenth of the run.
    timed = min(rows, _TIMED_ROWS, max(8, len(ids) // 10)) if on_cpu else rows
    sample = [job.rows.timed(i) for i in ids[:timed]]
    wanted = rows if on_cpu else len(sample)
    while (found := none_if_out_of_memory(partial(decoder.time_batch, sample))) is None:
        if len(sample) == 1:
            raise too_large("a single prompt", decoder.device)
        free_memory()
        sample = sample[: len(sample) // 2]
    prompt_seconds, step_seconds = found
    return prompt_seconds / sum(map(len, sample)), step_seconds * wanted / len(sample)


@contextmanager
def explained_out_of_memory(what: str, device: torch.device) -> Iterator[None]:
    """Turn running out of memory into an error that says what did not fit, where no smaller batch
    can be tried."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise too_large(what, device) from error


def too_large(what: str, device: torch.device) -> ClewError:
    return ClewError(
        f'{what} does not fit in the memory of {device}. Use `quantize="4bit"`, a lower '
        '`max_new_tokens`, `keep="compact"`, or a device with more memory.'
    )
