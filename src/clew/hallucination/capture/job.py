"""Make ready for a capture: model, prompts, store, basis, and a check that batching is right."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor
from transformers import PreTrainedModel

from clew.errors import InputError
from clew.hallucination.capture.check import batching_error, pick_prompts, tolerance
from clew.hallucination.capture.config import ExtractConfig
from clew.hallucination.capture.decode import Decoder
from clew.hallucination.capture.models import (
    LoadedModel,
    describe_model,
    end_tokens,
    sliding_window,
)
from clew.hallucination.capture.observe import ModelObserver, listen_to_whole
from clew.hallucination.capture.plan import (
    MAX_FULL_TRACE_BYTES,
    BatchPlan,
    Estimate,
    estimate_run,
    full_bytes,
    plan_batches,
)
from clew.hallucination.capture.prompts import (
    Prompt,
    choose_prompt,
    shared_prefix,
    tokenize_prompts,
)
from clew.hallucination.capture.stopping import AnswerEnd
from clew.hallucination.capture.store import MACHINE_KEY, open_trace_store
from clew.hallucination.questions import Question, QuestionSet
from clew.hallucination.traces.basis import (
    BASIS_NAME,
    Basis,
    fit_basis,
    load_basis,
    save_basis,
)
from clew.hallucination.traces.schema import ANSWER_HIDDEN, TraceShape, trace_schema
from clew.memory import free_memory, is_out_of_memory
from clew.progress import Note, Reporter
from clew.storage import Manifest, ShardReader, shard_name
from clew.storage.disk import refuse_full_disk
from clew.storage.hashing import hash_file
from clew.storage.manifest import describe_in_schema, update_manifest

# Edges are stored as 16-bit token numbers.
MAX_TOKENS = 65_535
_BASIS_QUESTIONS = 64
_BASIS_TOKENS_A_COMPONENT = 16
# On a CPU a step takes about as long as it has rows, so a few are enough to time it.
_TIMED_ROWS = 24
# Left-out questions that are said one by one; the manifest names all.
_MAX_SAID = 10


@dataclass(kw_only=True)
class Job:
    """Everything that capturing a shard needs."""

    config: ExtractConfig
    manifest: Manifest
    questions: list[Question]
    prompts: list[list[int]]
    tokenizer: Any
    decoder: Decoder
    plan: BatchPlan
    schema: pa.Schema
    same_length: bool = False

    @property
    def store(self) -> Path:
        return self.config.out

    def shard_rows(self, batch_number: int) -> range:
        """The global ids that belong into a shard."""
        size = self.config.batch_size
        return range(batch_number * size, min(len(self.questions), (batch_number + 1) * size))

    def own_shards(self) -> list[int]:
        """The shards that this part of the store makes."""
        count = -(-len(self.questions) // self.config.batch_size)
        return [number for number in range(count) if self.config.part.owns(number)]

    def rows_in(self, shards: Iterable[int]) -> int:
        return sum(len(self.shard_rows(number)) for number in shards)

    def pending_shards(self) -> list[int]:
        """This part's shards that are not finished, or lack rows that are planned now."""
        return [number for number in self.own_shards() if not self._is_complete(number)]

    def _is_complete(self, number: int) -> bool:
        entry, wanted = self.manifest.shard(number), self.shard_rows(number)
        if entry is None or entry.rows < len(wanted):
            return False
        if entry.rows == self.config.batch_size:
            return True
        # Begun with more questions than now, it may hold later rows in place of these.
        ids = ShardReader(self.store / entry.file).read_column("global_example_id")
        return set(wanted) <= set(ids.to_pylist())


def prepare_job(
    config: ExtractConfig, questions: QuestionSet, loaded: LoadedModel, reporter: Reporter
) -> Job:
    """Open the store and check the capture; raises ClewError if it cannot be."""
    observer = ModelObserver(loaded.model)
    shape = TraceShape(
        layers=observer.num_layers,
        dim=observer.dim,
        heads=observer.heads,
        node_dim=config.node_dim,
        edges_per_token=config.edges_per_token,
    )
    prompt = choose_prompt(loaded.tokenizer, config.prompt, config.chat, questions.instruction)
    texts = [question.question for question in questions.questions]
    prompts = tokenize_prompts(loaded.tokenizer, prompt, texts)
    usable, skipped = _leave_out_too_long(config, loaded.model, shape, questions, prompts)
    kept = [questions.questions[i] for i in usable]
    kept_prompts = [prompts[i] for i in usable]
    plan = plan_batches(
        model=loaded.model,
        shape=shape,
        prompt_lengths=[len(p) for p in kept_prompts],
        max_new_tokens=config.max_new_tokens,
        batch_size=config.batch_size,
        rows=config.generation_batch,
    )
    manifest = open_trace_store(
        config.out,
        settings=_describe_settings(config, questions, loaded, prompt, plan),
        rows_per_shard=config.batch_size,
        planned_rows=len(kept),
        skipped=skipped,
    )
    if config.generation_batch is None:
        plan = _stored_plan(manifest, plan)
    _say_what_is_left_out(skipped, reporter)
    basis, manifest = _open_basis(config.out, manifest, loaded, observer, kept, kept_prompts, shape)
    job = Job(
        config=config,
        manifest=manifest,
        questions=kept,
        prompts=kept_prompts,
        tokenizer=loaded.tokenizer,
        decoder=_make_decoder(config, loaded, observer, shape, basis, kept_prompts),
        plan=plan,
        schema=_shard_schema(config, shape, manifest, reporter),
    )
    _check_batching(job, reporter)
    return job


def _shard_schema(
    config: ExtractConfig, shape: TraceShape, manifest: Manifest, reporter: Reporter
) -> pa.Schema:
    """All shards of a store have the same columns, whichever clew began it."""
    answer_hidden = manifest.settings.get(ANSWER_HIDDEN, False)
    if not answer_hidden:
        reporter(
            Note(
                f"this store was begun by an older clew, without {ANSWER_HIDDEN}: it goes on "
                f"without (another `out` starts one that has it)"
            )
        )
    schema = trace_schema(
        shape, config.keep, answer_hidden=answer_hidden, samples=config.samples > 0
    )
    return describe_in_schema(schema, manifest)


def _describe_settings(
    config: ExtractConfig,
    questions: QuestionSet,
    loaded: LoadedModel,
    prompt: Prompt,
    plan: BatchPlan,
) -> dict[str, Any]:
    """What the manifest says of a run, and what a later run is held against."""
    samples = {"samples": config.samples, "sample_temperature": config.sample_temperature}
    return {
        "model": describe_model(config.model, loaded.model, config.quantize),
        "prompt": {"template": prompt.template, "chat": prompt.chat},
        "generation": {
            "max_new_tokens": config.max_new_tokens,
            "num_beams": config.num_beams,
            "cut": config.cut,
            **(samples if config.samples else {}),
        },
        "questions": {"name": questions.name, "sha256": questions.sha256},
        "keep": config.keep,
        ANSWER_HIDDEN: True,
        "node_dim": config.node_dim,
        "edges_per_token": config.edges_per_token,
        MACHINE_KEY: {
            "device": str(loaded.model.device),
            "generation_batch": plan.rows,
            "generation_tokens": plan.tokens,
        },
    }


def _say_what_is_left_out(skipped: Sequence[dict[str, str]], reporter: Reporter) -> None:
    for entry in skipped[:_MAX_SAID]:
        reporter(Note(f"left out: {entry['where']}: {entry['reason']}"))
    if len(skipped) > _MAX_SAID:
        reporter(Note(f"left out: {len(skipped) - _MAX_SAID:,} more, named in the manifest"))


def estimate_job(job: Job, pending: Sequence[int]) -> Estimate:
    """Time one batch and say what these shards will take; raises DiskFullError when they
    cannot fit."""
    config, decoder = job.config, job.decoder
    left = [i for number in pending for i in job.shard_rows(number)]
    lengths = sorted(len(job.prompts[i]) for i in left)
    middle = lengths[len(lengths) // 2]
    rows = min(job.plan.rows, len(left))
    on_cpu = decoder.device.type == "cpu"
    timed = min(rows, _TIMED_ROWS) if on_cpu else rows
    sample = [job.prompts[i] for i in left if len(job.prompts[i]) <= middle][:timed]
    prompt_seconds, step_seconds = _time_what_fits(decoder, sample)
    if on_cpu:
        step_seconds *= rows / len(sample)
    estimate = estimate_run(
        shape=decoder.shape,
        keep=config.keep,
        prompt_lengths=lengths,
        max_new_tokens=config.max_new_tokens,
        plan=job.plan,
        seconds_per_prompt_token=prompt_seconds / sum(len(p) for p in sample),
        seconds_per_step=step_seconds,
        samples=config.samples,
    )
    # Other parts' unfinished shards are no room that this one has.
    parts = [job.store / f"{shard_name(number)}.part" for number in pending]
    begun = sum(path.stat().st_size for path in parts if path.exists())
    refuse_full_disk(
        job.store,
        estimate.bytes - begun,
        what="the run may write up to",
        advice="Make room, choose another `out`, capture fewer questions (`num_samples`), or keep "
        'less (`keep="compact"`).',
    )
    return estimate


def _time_what_fits(decoder: Decoder, prompts: list[list[int]]) -> tuple[float, float]:
    """Time a batch, or as much of it as the device's memory holds, scaled up."""
    try:
        return decoder.time_batch(prompts)
    except RuntimeError as error:
        if not is_out_of_memory(error) or len(prompts) == 1:
            raise
    free_memory()
    half = len(prompts) // 2
    prompt_seconds, step_seconds = _time_what_fits(decoder, prompts[:half])
    return 2 * prompt_seconds, 2 * step_seconds


def _leave_out_too_long(
    config: ExtractConfig,
    model: PreTrainedModel,
    shape: TraceShape,
    questions: QuestionSet,
    prompts: Sequence[Sequence[int]],
) -> tuple[list[int], list[dict[str, str]]]:
    """The questions that can be captured, and by name those that cannot, broken lines too."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    limit = min(context or MAX_TOKENS, MAX_TOKENS)
    usable, skipped = [], [{"where": s.where, "reason": s.reason} for s in questions.skipped]
    for index, (question, prompt) in enumerate(zip(questions.questions, prompts, strict=True)):
        tokens = len(prompt) + config.max_new_tokens
        reason = None
        if tokens > limit:
            reason = f"{len(prompt)} prompt tokens and {config.max_new_tokens} new ones do not "
            reason += f"fit into the model's {limit}: shorten it, or lower `max_new_tokens`"
        elif config.keep == "full" and full_bytes(shape, tokens) > MAX_FULL_TRACE_BYTES:
            reason = f"its full trace of {tokens} tokens would take "
            reason += f'{full_bytes(shape, tokens) / 1e9:.1f} GB; use `keep="compact"` for it'
        if reason is None:
            usable.append(index)
        else:
            skipped.append({"where": f"question {question.id}", "reason": reason})
    if not usable:
        first = skipped[len(questions.skipped)]
        raise InputError(
            f"none of the {len(prompts)} questions of {questions.name} can be captured. The "
            f"first, {first['where']}: {first['reason']}."
        )
    return usable, skipped


def _stored_plan(manifest: Manifest, plan: BatchPlan) -> BatchPlan:
    """The same batches as before give the same rounding: a resumed run keeps the plan."""
    machine = manifest.settings.get(MACHINE_KEY, {})
    if not machine.get("generation_batch"):
        return plan
    return BatchPlan(rows=machine["generation_batch"], tokens=machine["generation_tokens"])


class StateSample:
    """A listener that keeps the states of real tokens of every layer, to fit a basis on."""

    def __init__(self, layers: int) -> None:
        self.states: list[list[Tensor]] = [[] for _ in range(layers)]
        self.keep: Tensor | None = None

    def on_hidden(self, layer: int, states: Tensor) -> None:
        assert self.keep is not None
        self.states[layer].append(states[self.keep].float())

    def on_attention(self, layer: int, weights: Tensor) -> None:
        """Attention plays no part in the basis."""


def _open_basis(
    store: Path,
    manifest: Manifest,
    loaded: LoadedModel,
    observer: ModelObserver,
    questions: Sequence[Question],
    prompts: Sequence[Sequence[int]],
    shape: TraceShape,
) -> tuple[Basis, Manifest]:
    """The store's basis; the first process to come here fits it for all."""
    if BASIS_NAME in manifest.files:
        return load_basis(store), manifest
    basis = _fit_basis(loaded, observer, questions, prompts, shape.node_dim)

    def enter(current: Manifest) -> Manifest:
        if BASIS_NAME in current.files:
            return current
        save_basis(store, basis)
        sha256 = hash_file(store / BASIS_NAME)
        return replace(current, files={**current.files, BASIS_NAME: sha256})

    manifest = update_manifest(store, enter)
    return load_basis(store), manifest


def _fit_basis(
    loaded: LoadedModel,
    observer: ModelObserver,
    questions: Sequence[Question],
    prompts: Sequence[Sequence[int]],
    node_dim: int,
) -> Basis:
    """Fit on first questions with their first accepted answer; shared tokens count once."""
    skip = max(1, len(shared_prefix(prompts)))
    sequences: list[list[int]] = []
    tokens = 0
    for question, prompt in zip(questions[:_BASIS_QUESTIONS], prompts, strict=False):
        text = f" {question.answers[0]}" if question.answers else ""
        answer = loaded.tokenizer.encode(text, add_special_tokens=False) if text else []
        sequences.append([*prompt, *answer][:512])
        tokens += len(sequences[-1]) - skip
        if tokens >= node_dim * _BASIS_TOKENS_A_COMPONENT:
            break
    sample = StateSample(observer.num_layers)
    for start in range(0, len(sequences), 16):
        part = sequences[start : start + 16]
        sample.keep = _kept_tokens(part, skip, first=start == 0).to(loaded.model.device)
        listen_to_whole(loaded.model, observer, part, sample)
    return fit_basis([torch.cat(layer) for layer in sample.states], node_dim)


def _kept_tokens(sequences: Sequence[Sequence[int]], skip: int, *, first: bool) -> torch.Tensor:
    """Real tokens behind the shared beginning; of that, all but the very first token count once.

    The first token's state is of another size than all others in most models and would take
    the basis for itself.
    """
    width = max(len(sequence) for sequence in sequences)
    keep = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        keep[row, 1 if first and row == 0 else skip : len(sequence)] = True
    return keep


def _make_decoder(
    config: ExtractConfig,
    loaded: LoadedModel,
    observer: ModelObserver,
    shape: TraceShape,
    basis: Basis,
    prompts: Sequence[Sequence[int]],
    *,
    share: bool = True,
) -> Decoder:
    window = sliding_window(loaded.model)
    longest = max(len(prompt) for prompt in prompts) + config.max_new_tokens
    # Padding after a shared beginning would shift what a sliding window sees.
    share = share and (window is None or longest <= window)
    ends = end_tokens(loaded.model, loaded.tokenizer)
    return Decoder(
        model=loaded.model,
        observer=observer,
        shape=shape,
        basis=basis,
        answer_end=AnswerEnd(loaded.tokenizer, config.cut, ends),
        max_new_tokens=config.max_new_tokens,
        prefix=shared_prefix(prompts) if share else (),
        graphs=share and window is None and loaded.model.device.type == "cuda",
    )


def _error_with_graphs(decoder: Decoder, prompts: Sequence[Sequence[int]]) -> float:
    """Infinite when the model's steps cannot be captured at all."""
    try:
        return batching_error(decoder, prompts)
    except RuntimeError as error:
        if not decoder.batch_model.graphs or is_out_of_memory(error):
            raise
        return float("inf")


def _check_batching(job: Job, reporter: Reporter) -> None:
    """Refuse to go on with wrong values; where only padding is to blame, do without it."""
    prompts = pick_prompts(job.prompts)
    limit = tolerance(job.decoder)
    error = _error_with_graphs(job.decoder, prompts)
    if error > limit and job.decoder.batch_model.graphs:
        reporter(Note("this model's steps cannot be replayed as a CUDA graph: slower without"))
        job.decoder.batch_model.graphs = False
        error = batching_error(job.decoder, prompts)
    if error <= limit:
        reporter(Note(f"checked: batched capture equals single passes (difference {error:.1e})"))
        return
    loaded = LoadedModel(job.decoder.model, job.tokenizer)
    job.decoder = _make_decoder(
        job.config,
        loaded,
        job.decoder.observer,
        job.decoder.shape,
        job.decoder.basis,
        job.prompts,
        share=False,
    )
    job.same_length = True
    alone = max(batching_error(job.decoder, [prompt]) for prompt in prompts)
    if alone > limit:
        raise InputError(
            f"{job.config.model} cannot be captured faithfully: even one prompt at a time, states "
            f'differ from a plain pass by {alone:.1e} of their size. Try `dtype="float32"`.'
        )
    reporter(
        Note(
            f"this model's values change with padding (by {error:.1e}): prompts of equal length "
            f"only are put together, which is slower"
        )
    )
