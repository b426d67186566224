"""Prepare a capture: model, prompts, store, basis, and a check that batching is correct."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import torch

from clew.base.errors import InputError
from clew.base.progress import Note, Reporter
from clew.base.texts import bytes_text
from clew.hallucination.capture.basis import OtherBasis, fit_on_questions
from clew.hallucination.capture.config import ExtractConfig, Generation
from clew.hallucination.capture.plan import MAX_FULL_TRACE_BYTES, full_bytes, plan_batches
from clew.hallucination.capture.store import MACHINE_KEY, TraceStore
from clew.hallucination.llm.check import settle_decoder
from clew.hallucination.llm.decoder import Decoder
from clew.hallucination.llm.device_map import can_replay
from clew.hallucination.llm.memory import BatchPlan, ExtraWork
from clew.hallucination.llm.models import (
    LoadedModel,
    context_tokens,
    describe_model,
    end_tokens,
    sliding_window,
)
from clew.hallucination.llm.observe import ModelObserver
from clew.hallucination.llm.prompts import (
    CONTEXT,
    AnswerEnd,
    Prompt,
    PromptTokenizer,
    choose_prompt,
    shared_prefix,
)
from clew.hallucination.llm.self_evaluation import SelfChecks
from clew.hallucination.questions import Question, QuestionSet
from clew.hallucination.traces.basis import Basis
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
    checks = SelfChecks.prepare(
        loaded,
        prompt,
        evaluates=config.self_evaluation,
        compares=config.entailment,
        draws=config.draws,
    )
    limits = Limits(
        new_tokens=generation.max_new_tokens,
        evaluation_tokens=checks.room,
        tokens=context_tokens(loaded.model),
        full_shape=shape if config.keep == "full" else None,
    )
    asked = ask_questions(questions, prompt, loaded.tokenizer, limits)
    plan = plan_batches(
        model=loaded.model,
        shape=shape,
        prompt_lengths=[len(p) for p in asked.prompts],
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
    store.open(settings=settings, rows=len(asked.questions), skipped=asked.skipped)
    if config.generation_batch is None:
        plan = _stored_plan(store.manifest, plan)
    _report_excluded(asked.skipped, reporter)
    fit = functools.partial(
        fit_on_questions, loaded, observer, node_dim=shape.node_dim, reporter=reporter
    )
    basis = store.open_basis(lambda: fit(asked.questions, asked.prompts), other)
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
    make = functools.partial(
        _make_decoder, loaded, observer, shape, basis, generation, checks.room, asked.prompts
    )
    decoder, same_length = settle_decoder(make, asked.prompts, reporter, name=config.model)
    return Job(
        store=store,
        questions=asked.questions,
        prompts=asked.prompts,
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
        "questions": _describe_questions(questions),
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


def _describe_questions(questions: QuestionSet) -> dict[str, str]:
    described = {"name": questions.name, "sha256": questions.sha256}
    if questions.contexts_sha256:
        described["contexts_sha256"] = questions.contexts_sha256
    return described


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


def _make_decoder(
    loaded: LoadedModel,
    observer: ModelObserver,
    shape: TraceShape,
    basis: Basis,
    generation: Generation,
    room: int,
    prompts: Sequence[Sequence[int]],
    share: bool,
) -> Decoder:
    window = sliding_window(loaded.model)
    longest = max(len(prompt) for prompt in prompts) + generation.max_new_tokens + room
    # Padding after a shared prefix would shift what a sliding window sees.
    share = share and (window is None or longest <= window)
    ends = end_tokens(loaded.model, loaded.tokenizer)
    return Decoder(
        model=loaded.model,
        observer=observer,
        shape=shape,
        basis=basis,
        answer_end=AnswerEnd(loaded.tokenizer, generation.cut, ends),
        max_new_tokens=generation.max_new_tokens,
        prefix=shared_prefix(prompts) if share else (),
        graphs=share and window is None and can_replay(loaded.model),
    )


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


@dataclass(frozen=True, kw_only=True)
class AskedQuestions:
    """The questions that can be captured, their tokens, and the skipped ones with the reason."""

    questions: list[Question]
    prompts: list[list[int]]
    skipped: list[dict[str, str]]


def ask_questions(
    questions: QuestionSet, prompt: Prompt, tokenizer: Any, limits: Limits
) -> AskedQuestions:
    """Tokenize all questions, and skip those that are too long and malformed records."""
    texts = [question.question for question in questions.questions]
    skipped = [{"where": s.where, "reason": s.reason} for s in questions.skipped]
    asked = AskedQuestions(questions=[], prompts=[], skipped=skipped)
    contexts = [question.context for question in questions.questions]
    prompts = PromptTokenizer(tokenizer, prompt, limits.tokens).tokenize(texts, contexts)
    for question, tokens in zip(questions.questions, prompts, strict=True):
        reason: str | None
        if isinstance(tokens, str):
            reason = tokens
        elif (reason := limits.reason_against(len(tokens), question)) is None:
            asked.questions.append(question)
            asked.prompts.append(tokens)
            continue
        skipped.append({"where": f"question {question.id:.80}", "reason": reason})
    if not asked.questions:
        first = skipped[len(questions.skipped)]
        raise InputError(
            f"none of the {len(texts)} questions of {questions.name} can be captured. The "
            f"first, {first['where']}: {first['reason']}."
        )
    return asked
