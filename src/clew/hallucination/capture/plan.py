"""Plan a run: the rows per batch, disk space, memory and time."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch
from transformers import PreTrainedModel

from clew.base.errors import ClewError
from clew.base.memory import free_memory, is_out_of_memory
from clew.base.texts import bytes_text, duration_text
from clew.hallucination.llm.decoder import Decoder
from clew.hallucination.llm.device_map import free_gpu_memory, model_device
from clew.hallucination.llm.memory import (
    BatchPlan,
    ExtraWork,
    record_bytes,
    row_bytes,
)
from clew.hallucination.traces.schema import MOST_EIGENVALUES, Keep, TraceShape

CPU_ROWS = 128
MAX_ROWS = 1024
# Share of the free device memory that a generation batch may take.
_MEMORY_SHARE = 0.6
_TEXT_BYTES = 600
_TOKEN_TEXT_BYTES = 8
# On a CPU the time of a step grows with its rows, so a few are enough to time it.
_TIMED_ROWS = 24
# A full trace must fit in memory; this is its maximum size.
MAX_FULL_TRACE_BYTES = 1 << 30


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
    further = (one.repeats * sum(tokens) + one.tokens * len(tokens) for one in extra)
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
