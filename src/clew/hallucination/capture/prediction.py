"""How long a capture takes: the cost of prompts and of steps, applied to batches of questions that
are like those of a sample. On another GPU, both costs follow from what it computes and reads."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from clew.hallucination.capture.gpus import REACHED, Gpu
from clew.hallucination.capture.plan import BatchPlan, make_batches

# Shards that are put together from the sample to average over.
_SHARDS = 8


@dataclass(frozen=True, kw_only=True)
class AskedQuestion:
    """The tokens of a prompt that are passed for it alone, and of its answer."""

    prompt: int
    answer: int


@dataclass(frozen=True, kw_only=True)
class CaptureWork:
    """What some questions take: tokens of prompts, steps, and rows in all of these steps."""

    prompt_tokens: float
    steps: float
    row_steps: float

    def scaled(self, factor: float) -> "CaptureWork":
        return CaptureWork(
            prompt_tokens=self.prompt_tokens * factor,
            steps=self.steps * factor,
            row_steps=self.row_steps * factor,
        )


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds per token of a prompt, per step, and per row in it. `factor` is what a capture takes
    besides: the record, further answers, writing."""

    prompt_token: float
    step: float
    row: float
    factor: float = 1.0

    def prompt_seconds(self, work: CaptureWork) -> float:
        return self.factor * self.prompt_token * work.prompt_tokens

    def step_seconds(self, work: CaptureWork) -> float:
        return self.factor * (self.step * work.steps + self.row * work.row_steps)

    def seconds(self, work: CaptureWork) -> float:
        return self.prompt_seconds(work) + self.step_seconds(work)


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """What a pass computes and reads: the weights, and the keys and values of one token."""

    parameters: int
    weight_bytes: int
    cache_bytes: int


def count_work(
    questions: Sequence[AskedQuestion], plan: BatchPlan, max_new_tokens: int, *, drops_rows: bool
) -> CaptureWork:
    """What a shard takes. `drops_rows`: a finished answer leaves its batch."""
    batches = make_batches([question.prompt for question in questions], plan, max_new_tokens)
    steps = row_steps = 0
    for batch in batches:
        lengths = [questions[i].answer for i in batch]
        steps += max(lengths)
        row_steps += sum(lengths) if drops_rows else len(batch) * max(lengths)
    prompts = sum(question.prompt for question in questions)
    return CaptureWork(prompt_tokens=prompts, steps=steps, row_steps=row_steps)


def typical_shard(
    sample: Sequence[AskedQuestion],
    size: int,
    plan: BatchPlan,
    max_new_tokens: int,
    *,
    drops_rows: bool,
) -> CaptureWork:
    """What a shard of `size` questions like those of the sample takes on average."""
    draw = random.Random(0)
    shards = [draw.choices(sample, k=size) for _ in range(_SHARDS)]
    works = [count_work(one, plan, max_new_tokens, drops_rows=drops_rows) for one in shards]
    return CaptureWork(
        prompt_tokens=sum(work.prompt_tokens for work in works) / _SHARDS,
        steps=sum(work.steps for work in works) / _SHARDS,
        row_steps=sum(work.row_steps for work in works) / _SHARDS,
    )


def fit_steps(few: tuple[int, float], many: tuple[int, float]) -> tuple[float, float]:
    """Seconds of a step, and of each row in it, from steps with (rows, seconds)."""
    (small, fast), (large, slow) = few, many
    row = max(0.0, (slow - fast) / max(1, large - small))
    step = max(0.0, slow - large * row)
    return step, row


def limit_costs(size: ModelSize, gpu: Gpu, tokens: float) -> Costs:
    """The least that a GPU needs, with `tokens` in the cache of a row."""
    computed = 2 * size.parameters / gpu.flops
    return Costs(
        prompt_token=computed,
        step=size.weight_bytes / gpu.bandwidth,
        row=computed + tokens * size.cache_bytes / gpu.bandwidth,
    )


def costs_on(
    gpu: Gpu, size: ModelSize, tokens: float, measured: Costs, here: Gpu | None, work: CaptureWork
) -> Costs:
    """The costs on another GPU: those measured on the one that is `here`, in the ratio of what both
    need at least; or, without one, the share of the limits that captures reach."""
    limit = limit_costs(size, gpu, tokens)
    factor = 1 / REACHED
    if here is not None:
        factor = measured.seconds(work) / limit_costs(size, here, tokens).seconds(work)
    return Costs(prompt_token=limit.prompt_token, step=limit.step, row=limit.row, factor=factor)
