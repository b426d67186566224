"""Prepare a capture: model, prompts, store, basis, and a check that batching is correct."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import torch

from clew.base.progress import Note, Reporter
from clew.hallucination.capture.basis import OtherBasis, fit_on_questions
from clew.hallucination.capture.check import settle_decoder
from clew.hallucination.capture.config import ExtractConfig, Generation
from clew.hallucination.capture.decode import Decoder
from clew.hallucination.capture.device_map import can_replay
from clew.hallucination.capture.dialogue import (
    CONTEXT,
    AnswerEnd,
    Prompt,
    choose_prompt,
    shared_prefix,
)
from clew.hallucination.capture.limits import Limits, ask_questions
from clew.hallucination.capture.models import (
    LoadedModel,
    context_tokens,
    describe_model,
    end_tokens,
    sliding_window,
)
from clew.hallucination.capture.observe import ModelObserver
from clew.hallucination.capture.plan import BatchPlan, ExtraWork, plan_batches
from clew.hallucination.capture.self_checks import SelfChecks
from clew.hallucination.capture.store import MACHINE_KEY, TraceStore
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
from clew.storage import Manifest
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
    checks = SelfChecks.prepare(config, loaded, prompt)
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
