"""Prepare a capture: model, prompts, store, basis, a check that batching is correct, and a plan of
its batches, disk space, memory and time."""

import functools
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import psutil
import pyarrow as pa
import torch
from transformers import PreTrainedModel

from clew.base.errors import ClewError, InputError
from clew.base.memory import free_memory, is_out_of_memory
from clew.base.progress import Note, Reporter
from clew.base.texts import bytes_text, duration_text
from clew.hallucination.capture.basis import OtherBasis, fit_on_questions
from clew.hallucination.capture.config import ExtractConfig, Generation
from clew.hallucination.capture.store import MACHINE_KEY, TraceStore
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
    Prompt,
    PromptTokenizer,
    choose_prompt,
    shared_prefix,
)
from clew.hallucination.llm.recording import Recording
from clew.hallucination.llm.self_evaluation import Entailment, SelfChecks, SelfEvaluation
from clew.hallucination.questions import Question, QuestionSet
from clew.hallucination.traces.schema import (
    ANSWER_HIDDEN,
    EIGENVALUES,
    MOST_EIGENVALUES,
    Keep,
    TraceShape,
    trace_schema,
)
from clew.storage.manifest import Manifest
from clew.storage.origin import describe_in_schema

# Skipped questions that are reported one by one; the manifest lists all.
_MAX_SAID = 10
CPU_ROWS = 128
# Share of the free device memory that a generation batch may take.
_MEMORY_SHARE = 0.6
_TEXT_BYTES = 600
_TOKEN_TEXT_BYTES = 8
# On a CPU the time of a step grows with its rows, so a few are enough to time it.
_TIMED_ROWS = 24
# A full trace must fit in memory; this is its maximum size.
MAX_FULL_TRACE_BYTES = 1 << 30


@dataclass(kw_only=True)
class Job:
    """Everything that capturing a shard needs."""

    store: TraceStore
    questions: list[Question]
    prompts: list[list[int]]
    tokenizer: Any
    decoder: Decoder
    generation: Generation
    plan: BatchPlan
    keep: Keep
    eigenvalues: int  # 0: the diagonals of every token instead
    schema: pa.Schema
    checks: SelfChecks

    @cached_property
    def shared_tokens(self) -> int:
        """What all prompts start with; a batch passes it once."""
        return len(shared_prefix(self.prompts))

    @property
    def extra_work(self) -> list[ExtraWork]:
        """What answers take besides answering and drawing."""
        return self.checks.extra_work(self.decoder.shape, self.generation.max_new_tokens)


def prepare_job(
    config: ExtractConfig,
    questions: QuestionSet,
    loaded: LoadedModel,
    store: TraceStore,
    reporter: Reporter,
) -> Job:
    """Open the store and check the capture; raises ClewError if it is not possible."""
    observer, generation = ModelObserver(loaded.model), config.generation
    shape = TraceShape(
        layers=observer.num_layers,
        dim=observer.dim,
        heads=observer.heads,
        node_dim=config.node_dim,
        edges_per_token=config.edges_per_token,
    )
    prompt = choose_prompt(
        loaded.tokenizer,
        config.prompt,
        config.chat,
        questions.instruction,
        with_context=bool(questions.contexts_sha256),
    )
    questions = _used_contexts(questions, prompt, reporter)
    checks = SelfChecks(
        loaded,
        chat=prompt.chat,
        evaluation=SelfEvaluation.of_model(shape.layers) if config.self_evaluation else None,
        entailment=Entailment() if config.entailment else None,
        draws=config.draws,
    )
    limits = Limits(
        new_tokens=generation.max_new_tokens,
        evaluation_tokens=checks.room,
        tokens=context_tokens(loaded.model),
        full_shape=shape if config.keep == "full" else None,
    )
    asked, prompts, skipped = ask_questions(questions, prompt, loaded.tokenizer, limits)
    plan = plan_batches(
        model=loaded.model,
        shape=shape,
        prompt_lengths=[len(p) for p in prompts],
        max_new_tokens=generation.max_new_tokens + checks.room,
        batch_size=store.rows_per_shard,
        rows=config.generation_batch,
    )
    model = describe_model(config.model, loaded.model, config.quantize)
    other = None if config.basis is None else OtherBasis.open(config.basis, model, shape)
    settings = {"model": model, **_describe_settings(config, questions, loaded, prompt, plan)}
    if other is not None:
        settings["basis"] = other.sha256
    settings |= checks.describe()
    store.open(settings=settings, rows=len(asked), skipped=skipped)
    if config.generation_batch is None:
        plan = _stored_plan(store.manifest, plan)
    _report_excluded(skipped, reporter)
    fit = functools.partial(
        fit_on_questions, loaded, observer, node_dim=shape.node_dim, reporter=reporter
    )
    basis = store.open_basis(lambda: fit(asked, prompts), other)
    eigenvalues = store.manifest.settings.get(EIGENVALUES, 0)
    schema = trace_schema(
        shape,
        config.keep,
        answer_hidden=_has_answer_hidden(store.manifest, reporter),
        eigenvalues=eigenvalues,
        samples=generation.draws > 0,
        context=prompt.context_template is not None,
        parts=questions.has_parts,
        evaluation=checks.shape,
    )
    decoder = Decoder(
        loaded,
        Recording(shape=shape, basis=basis),
        cut=generation.cut,
        max_new_tokens=generation.max_new_tokens,
        max_rows=max(plan.rows, MAX_ROWS),
    )
    same_length = settle_decoder(decoder, prompts, reporter, name=config.model)
    return Job(
        store=store,
        questions=asked,
        prompts=prompts,
        tokenizer=loaded.tokenizer,
        decoder=decoder,
        generation=generation,
        plan=replace(plan, same_length=same_length),
        keep=config.keep,
        eigenvalues=eigenvalues,
        schema=describe_in_schema(schema, store.manifest),
        checks=checks,
    )


def _used_contexts(questions: QuestionSet, prompt: Prompt, reporter: Reporter) -> QuestionSet:
    """The questions without their contexts if the user's prompt has no place for them."""
    if not questions.contexts_sha256 or prompt.context_template is not None:
        return questions
    reporter(Note(f"`prompt` does not contain {CONTEXT}: the questions' contexts are not used"))
    return questions.without_contexts()


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
        "generation": config.generation.describe(),
        "questions": {
            "name": questions.name,
            "sha256": questions.sha256,
            **({"contexts_sha256": sha256} if (sha256 := questions.contexts_sha256) else {}),
        },
        "keep": config.keep,
        ANSWER_HIDDEN: True,
        EIGENVALUES: MOST_EIGENVALUES,
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


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a trace: the model's maximum tokens including new ones; with `full_shape`, the
    bytes of a full trace."""

    new_tokens: int
    evaluation_tokens: int
    tokens: int
    full_shape: TraceShape | None

    def reason_against(self, prompt_tokens: int, question: Question) -> str | None:
        """Why a question whose prompt has this many tokens cannot be captured."""
        tokens = prompt_tokens + self.new_tokens
        if tokens + self.evaluation_tokens > self.tokens:
            long = "question" if question.context is None else "question or its context"
            evaluation = self.evaluation_tokens
            more = f", with {evaluation} tokens of self-evaluation," if evaluation else ""
            return (
                f"{prompt_tokens} prompt tokens and {self.new_tokens} new tokens{more} exceed the "
                f"model's limit of {self.tokens}: shorten the {long}, or lower "
                "`max_new_tokens`"
            )
        size = full_bytes(self.full_shape, tokens) if self.full_shape else 0
        if size > MAX_FULL_TRACE_BYTES:
            return (
                f"its full trace of {tokens} tokens would take {bytes_text(size)}; use "
                f'`keep="compact"` for it'
            )
        return None


def ask_questions(
    questions: QuestionSet, prompt: Prompt, tokenizer: Any, limits: Limits
) -> tuple[list[Question], list[list[int]], list[dict[str, str]]]:
    """The questions that can be captured, their tokens, and the skipped ones with the reason: those
    that are too long, and malformed records."""
    asked: list[tuple[Question, list[int]]] = []
    texts = [question.question for question in questions.questions]
    skipped = [{"where": s.where, "reason": s.reason} for s in questions.skipped]
    contexts = [question.context for question in questions.questions]
    prompts = PromptTokenizer(tokenizer, prompt, limits.tokens).tokenize(texts, contexts)
    for question, tokens in zip(questions.questions, prompts, strict=True):
        reason: str | None
        if isinstance(tokens, str):
            reason = tokens
        elif (reason := limits.reason_against(len(tokens), question)) is None:
            asked.append((question, tokens))
            continue
        skipped.append({"where": f"question {question.id:.80}", "reason": reason})
    if not asked:
        first = skipped[len(questions.skipped)]
        raise InputError(
            f"none of the {len(texts)} questions of {questions.name} can be captured. The "
            f"first, {first['where']}: {first['reason']}."
        )
    return [question for question, _ in asked], [tokens for _, tokens in asked], skipped


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The remaining work, reported before it starts. `seconds` assumes the longest answers."""

    traces: int
    bytes: int
    memory_bytes: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.traces:,} traces to extract: at most {duration_text(self.seconds)}, "
            f"{bytes_text(self.bytes)} on disk, about {bytes_text(self.memory_bytes)} of memory"
        )


def plan_batches(
    *,
    model: PreTrainedModel,
    shape: TraceShape,
    prompt_lengths: Sequence[int],
    max_new_tokens: int,
    batch_size: int,
    rows: int | None,
) -> BatchPlan:
    """Plan the generation batches: as many rows as requested or as fit in device memory, dividing a
    shard evenly."""
    width = _typical(prompt_lengths) + max_new_tokens
    if rows is None:
        rows = CPU_ROWS
        if model_device(model).type == "cuda":
            room = int(free_gpu_memory(model) * _MEMORY_SHARE)
            rows = max(1, min(MAX_ROWS, room // row_bytes(model, shape, width)))
        if rows < batch_size:
            rows = -(-batch_size // -(-batch_size // rows))
        rows = min(rows, batch_size)
    return BatchPlan(rows=rows, tokens=2 * rows * max(64, width))


def trace_bytes(shape: TraceShape, keep: Keep, tokens: int, sampled_tokens: int = 0) -> int:
    """Bytes on disk of one trace with that many tokens, including the text of drawn answers."""
    a_token = 2 * shape.node_dim + 4 * shape.edges_per_token
    by_head = 2 * shape.heads * (4 + MOST_EIGENVALUES)
    size = shape.layers * (4 * shape.dim + by_head + tokens * a_token)
    if keep == "full":
        size += full_bytes(shape, tokens)
    return size + _TEXT_BYTES + 8 * tokens + _TOKEN_TEXT_BYTES * sampled_tokens


def full_bytes(shape: TraceShape, tokens: int) -> int:
    return 2 * shape.layers * tokens * (shape.dim + shape.heads * tokens)


def estimate_run(
    decoder: Decoder,
    prompts: Sequence[list[int]],
    plan: BatchPlan,
    *,
    keep: Keep,
    samples: int = 0,
    extra: Sequence[ExtraWork] = (),
) -> Estimate:
    """Time one batch and extrapolate to all prompts, assuming answers of maximum length."""
    shape, max_new_tokens = decoder.shape, decoder.max_new_tokens
    lengths = sorted(map(len, prompts))
    tokens = [length + max_new_tokens for length in lengths]
    size = sum(trace_bytes(shape, keep, count, samples * max_new_tokens) for count in tokens)
    size += len(tokens) * sum(one.bytes for one in extra)
    records = plan.rows * record_bytes(shape, tokens[-1]), plan.tokens * record_bytes(shape, 1)
    prompt_seconds, step_seconds = _time_batch(decoder, prompts, lengths[len(lengths) // 2], plan)
    memory = psutil.Process().memory_info().rss  # with what the timed batch took
    # Drawn answers pass their prompts once more, in batches of the same size as the answers.
    seconds = sum(lengths) * prompt_seconds * (2 if samples else 1)
    seconds += -(-len(tokens) // plan.rows) * max_new_tokens * step_seconds * (1 + samples)
    further = (sum(tokens) + one.tokens * len(tokens) for one in extra)
    seconds += sum(further) * prompt_seconds
    return Estimate(
        traces=len(tokens), bytes=size, memory_bytes=memory + 3 * min(records), seconds=seconds
    )


def _time_batch(
    decoder: Decoder, prompts: Sequence[list[int]], longest: int, plan: BatchPlan
) -> tuple[float, float]:
    """Seconds per prompt token, and seconds per step of a whole batch."""
    rows = min(plan.rows, len(prompts))
    on_cpu = decoder.device.type == "cpu"
    timed = min(rows, _TIMED_ROWS) if on_cpu else rows
    sample = [prompt for prompt in prompts if len(prompt) <= longest][:timed]
    prompt_seconds, step_seconds = _time_what_fits(decoder, sample)
    if on_cpu:
        step_seconds *= rows / len(sample)
    return prompt_seconds / sum(map(len, sample)), step_seconds


def _time_what_fits(decoder: Decoder, prompts: list[list[int]]) -> tuple[float, float]:
    """Time a batch, or as much of it as fits in device memory, scaled up."""
    try:
        return decoder.time_batch(prompts)
    except RuntimeError as error:
        if not is_out_of_memory(error) or len(prompts) == 1:
            raise
    free_memory()
    half = len(prompts) // 2
    prompt_seconds, step_seconds = _time_what_fits(decoder, prompts[:half])
    return 2 * prompt_seconds, 2 * step_seconds


@contextmanager
def explained_out_of_memory(what: str, device: torch.device) -> Iterator[None]:
    """Turn running out of memory into an InputError that says what did not fit, where no smaller
    batch can be tried."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ClewError(
            f'{what} does not fit in the memory of {device}. Use `quantize="4bit"`, a lower '
            '`max_new_tokens`, `keep="compact"`, or a device with more memory.'
        ) from error


def _typical(lengths: Sequence[int]) -> int:
    """A length that all but the longest prompts stay below."""
    if len(lengths) < 20:
        return max(lengths, default=1)
    return int(statistics.quantiles(lengths, n=20)[-1])
