"""Predict a capture before it is paid for: what a sample took, scaled to all questions, workers and
GPUs."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from clew.base.errors import InputError
from clew.base.progress import Reporter
from clew.base.texts import bytes_text
from clew.hallucination.capture.config import ExtractConfig
from clew.hallucination.capture.gpus import Gpu, find_gpu, recognize_gpu
from clew.hallucination.capture.measuring import MeasuredSample, measure_sample
from clew.hallucination.capture.models import LoadedModel
from clew.hallucination.capture.plan import MAX_ROWS, BatchPlan
from clew.hallucination.capture.prediction import (
    AskedQuestion,
    CaptureWork,
    Costs,
    costs_on,
    typical_shard,
)
from clew.hallucination.questions import QuestionSet, load_questions
from clew.storage import read_manifest
from clew.storage.manifest import MANIFEST_NAME
from clew.storage.places import is_url

# The share of a GPU's free memory that rows may take.
_GPU_MEMORY_SHARE = 0.6
# Of each shard at a URL: list the leases, create one and delete it; list, put and delete what is
# finished of it; read the manifest three times and replace it; put the shard.
_REQUESTS_PER_SHARD = 11
_RENEWAL_SECONDS = 15.0
_PUT_PART_BYTES = 5 << 20
# One worker after the other replaces the manifest: requests, then parsing and encoding each entry.
_COMMIT_SECONDS, _ENTRY_SECONDS = 0.12, 28e-6
# Of the time, in which it can be replaced before most attempts are too late.
_MANIFEST_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class CapturePlan:
    """What a capture will take. `seconds` includes `startup_seconds`, in which each worker loads
    and checks the model. `error` is the relative uncertainty (95%) of the sampled answers' lengths.
    `requests` are those to an object store; 0 for a folder."""

    questions: int
    captured: int
    shards: int
    tokens: int
    tokens_per_trace: float
    bytes: int
    requests: int
    memory_bytes: int
    gpu_memory_bytes: int | None
    rows: int
    workers: int
    gpu: str | None
    seconds: float
    startup_seconds: float
    shard_seconds: float
    error: float
    bottleneck: str
    sample: int
    sample_seconds: float
    device: str
    notes: tuple[str, ...] = ()

    @property
    def hours(self) -> float:
        return self.seconds / 3600

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "hours": self.hours}


def predict_run(
    config: ExtractConfig,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    loaded: LoadedModel | None = None,
    questions: QuestionSet | None = None,
    *,
    workers: int = 1,
    gpu: str | None = None,
) -> CapturePlan:
    """Capture a sample of the questions into a temporary folder, and predict the run. Nothing is
    written to `config.out`. Raises ClewError as `extract` does."""
    if workers < 1:
        raise InputError("it must be 1 or more.", setting="workers", value=workers)
    target = None if gpu is None else find_gpu(gpu)
    questions = questions or load_questions(config.questions, config.num_samples)
    measured = measure_sample(config, questions, reporter, should_stop, loaded)
    return plan_capture(config, measured, len(questions.questions), workers, target)


def _captured(out: Path) -> int:
    return read_manifest(out).rows if (out / MANIFEST_NAME).exists() else 0


def plan_capture(
    config: ExtractConfig,
    measured: MeasuredSample,
    questions: int,
    workers: int = 1,
    target: Gpu | None = None,
) -> CapturePlan:
    """Scale what a sample took to all questions that are not captured yet."""
    remaining = max(0, questions - _captured(config.out))
    sizes, size = measured.questions, min(config.shard_size, max(1, remaining))
    mean = statistics.fmean(one.prompt + one.answer for one in sizes) + measured.shared_tokens
    plan, drops_rows, costs = measured.plan, measured.drops_rows, measured.costs
    cached = mean - statistics.fmean(one.answer for one in sizes) / 2
    if target is not None:
        plan, drops_rows = _plan_on(target, measured, size), False
    work = typical_shard(sizes, size, plan, measured.max_new_tokens, drops_rows=drops_rows)
    if target is not None:
        here = _gpu_here(measured.device)
        costs = costs_on(target, measured.size, cached, costs, here, work)
    shard_seconds, shards = costs.seconds(work), -(-remaining // config.shard_size)
    alone = shard_seconds * remaining / size
    seconds = alone if workers == 1 else shard_seconds * -(-shards // workers)
    total = int(remaining * measured.bytes_per_trace)
    return CapturePlan(
        questions=questions,
        captured=questions - remaining,
        shards=shards,
        tokens=int(remaining * mean),
        tokens_per_trace=mean,
        bytes=total,
        requests=_requests(config, shards, plan.rows, total, shard_seconds),
        memory_bytes=measured.memory_bytes,
        gpu_memory_bytes=_gpu_memory(measured, plan, target),
        rows=plan.rows,
        workers=workers,
        gpu=None if target is None else target.name,
        seconds=measured.startup_seconds + seconds if remaining else 0.0,
        startup_seconds=measured.startup_seconds,
        shard_seconds=shard_seconds,
        error=_relative_error(sizes),
        bottleneck=_find_bottleneck(costs, work, shards, workers, shard_seconds, measured),
        sample=len(sizes),
        sample_seconds=measured.seconds,
        device=str(measured.device),
        notes=_notes(target, measured),
    )


def _plan_on(gpu: Gpu, measured: MeasuredSample, size: int) -> BatchPlan:
    """As many rows as fit on the GPU. Raises InputError if the model does not."""
    room = gpu.memory_bytes - measured.size.weight_bytes
    if room <= 0:
        raise InputError(
            f"the model's weights take {bytes_text(measured.size.weight_bytes)}, and it has "
            f"{bytes_text(gpu.memory_bytes)}. Choose a larger one, or use `quantize`.",
            setting="gpu",
            value=gpu.name,
        )
    rows = int(room * _GPU_MEMORY_SHARE) // measured.row_bytes
    rows = max(1, min(MAX_ROWS, rows, size))
    rows = -(-size // -(-size // rows))
    return replace(measured.plan, rows=rows, tokens=2 * rows * 4096)


def _gpu_here(device: torch.device) -> Gpu | None:
    return recognize_gpu(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def _gpu_memory(measured: MeasuredSample, plan: BatchPlan, target: Gpu | None) -> int | None:
    if target is None and measured.device.type == "cpu":
        return None
    planned = measured.size.weight_bytes + plan.rows * measured.row_bytes
    return max(planned, measured.gpu_memory_bytes or 0)


def _relative_error(questions: Sequence[AskedQuestion]) -> float:
    """The 95% interval of the mean work per question."""
    tokens = [one.prompt + one.answer for one in questions]
    if len(tokens) < 2:
        return math.inf
    return 1.96 * statistics.stdev(tokens) / math.sqrt(len(tokens)) / statistics.fmean(tokens)


def _requests(config: ExtractConfig, shards: int, rows: int, total: int, seconds: float) -> int:
    if not is_url(config.out):
        return 0
    batches, renewals = -(-config.shard_size // rows), seconds / _RENEWAL_SECONDS
    return int(shards * (_REQUESTS_PER_SHARD + batches + renewals)) + total // _PUT_PART_BYTES


def _find_bottleneck(
    costs: Costs,
    work: CaptureWork,
    shards: int,
    workers: int,
    shard_seconds: float,
    measured: MeasuredSample,
) -> str:
    if shards < workers:
        return (
            f"the number of shards: {shards:,} for {workers:,} workers, so that "
            f"{workers - shards:,} have nothing to do. Use a smaller `shard_size`"
        )
    commits = _MANIFEST_SHARE / (_COMMIT_SECONDS + _ENTRY_SECONDS * shards / 2)
    if workers / shard_seconds > commits:
        return (
            f"the manifest: {workers / shard_seconds:.1f} shards finish per second, and about "
            f"{commits:.1f} can be added to it. Use a larger `shard_size`"
        )
    rounds = -(-shards // workers)
    if workers > 1 and (idle := 1 - shards / (rounds * workers)) > 0.2:
        return f"the last shards: workers are idle for {idle:.0%} of the time at the end"
    if measured.startup_seconds > rounds * shard_seconds:
        return "loading and checking the model, which takes longer than the capture"
    steps = costs.step_seconds(work) / costs.seconds(work)
    if steps < 0.5:
        return f"prompts: {1 - steps:.0%} of the time, limited by computation"
    fixed = costs.step * work.steps / (costs.step * work.steps + costs.row * work.row_steps)
    what = "reading the weights (larger batches help)" if fixed > 0.5 else "the rows in each step"
    return f"generating tokens: {steps:.0%} of the time, most of it {what}"


def _notes(target: Gpu | None, measured: MeasuredSample) -> tuple[str, ...]:
    if target is None:
        return ()
    here = _gpu_here(measured.device)
    if here is not None:
        return (f"scaled from the {here.name} here by the data sheets of both",)
    return (
        f"from the data sheet of the {target.name} and the share of it that captures reach on an "
        "H200; measure a few questions there to be sure",
    )
