"""Predict a capture before it is paid for: what a sample took, scaled to all questions, workers and
GPUs."""

import math
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from clew.base.errors import InputError, StoppedError
from clew.base.progress import Event, Reporter, WorkEnded, WorkStarted, log_event
from clew.base.settings import check_least
from clew.base.texts import bytes_text
from clew.base.urls import is_url
from clew.hallucination.capture.config import ExtractConfig
from clew.hallucination.capture.extracting import extract
from clew.hallucination.capture.gpus import Gpu, find_gpu, recognize_gpu
from clew.hallucination.capture.job import MAX_ROWS, Job, plan_batches
from clew.hallucination.llm.memory import (
    BatchPlan,
    cache_bytes,
    make_batches,
    record_bytes,
    row_bytes,
)
from clew.hallucination.llm.models import LoadedModel
from clew.hallucination.questions import QuestionSet
from clew.hallucination.questions.given import load_rows
from clew.hallucination.traces import TraceBatchLoader
from clew.storage.lock import Part
from clew.storage.manifest import MANIFEST_NAME, read_manifest

SAMPLE = 50
_STEPS = 4
# Of each prompt, where only steps are timed and passing prompts takes long.
_SHORT = 8
# Shards that are put together from the sample to average over.
_SHARDS = 8
# What a weight takes on a GPU, for a model that is measured on a CPU in float32.
_GPU_WEIGHT_BYTES = 2
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
# The share of both limits together that a capture reaches: 290 traces/s at Llama-2-7B's shape on an
# H200 (docs/benchmarks.md, "Capture"), where the limits alone would allow about 850.
_REACHED = 0.34


# What some questions take: tokens of prompts, steps, and rows in all of these steps.
Work = Float64[np.ndarray, "3"]
# Seconds per token of a prompt, per step, and per row in it.
Costs = Float64[np.ndarray, "3"]
# The tokens of a prompt that are passed for it alone, and of its answer.
Lengths = tuple[int, int]


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
    check_least("workers", workers)
    target = None if gpu is None else find_gpu(gpu)
    questions = questions or load_rows(config.questions, config.num_samples, config.answers)
    sample = SampleRun(config, questions, reporter or log_event)
    sample.capture(loaded, should_stop)
    return plan_capture(config, sample, len(questions.questions), workers, target)


class ModelSize(NamedTuple):
    """What a pass computes and reads: the weights, and the keys and values of one token."""

    parameters: int
    weight_bytes: int
    cache_bytes: int


class SampleRun:
    """Captures a sample of the questions into a temporary folder, and measures what each part of it
    takes, and how the whole run would be batched."""

    job: Job
    gpu: Gpu | None = None  # that it was measured on, if its data sheet is known
    gpu_memory_bytes: int | None = None

    def __init__(self, config: ExtractConfig, questions: QuestionSet, reporter: Reporter) -> None:
        self._config, self._reporter = config, reporter
        count = min(SAMPLE, len(questions.questions))
        # From all over the set: files are often sorted by subject.
        places = [i * len(questions.questions) // count for i in range(count)]
        some = [questions.questions[place] for place in places]
        self._questions = replace(questions, questions=some, skipped=[])
        self._begun = time.perf_counter()
        self.seconds = self.startup_seconds = self._capturing = self._timing = 0.0

    def capture(
        self,
        loaded: LoadedModel | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Raises ClewError as `extract` does."""
        with tempfile.TemporaryDirectory(prefix="clew-dry-run-") as scratch:
            out = Path(scratch) / "traces"
            config = replace(self._config, out=out, num_samples=None, part=Part(), join=False)
            extract(config, self._report, should_stop, loaded, self._questions, self._time_steps)
            if should_stop():
                raise StoppedError("stopped; nothing was captured.", is_resumable=False)
            self._measure(out)

    def _report(self, event: Event, /) -> None:
        self._reporter(event)
        if isinstance(event, WorkStarted):
            self._capturing = time.perf_counter()
            self.startup_seconds = self._capturing - self._begun - self._timing
        elif isinstance(event, WorkEnded) and self._capturing:
            self.seconds = time.perf_counter() - self._capturing

    def _time_steps(self, job: Job) -> None:
        """Before the first shard: steps of few and of many rows, with the prompts of the sample.
        Other processes disturb a CPU's own time less than the clock's. It takes long to pass
        prompts, and as long for each token of few as of many."""
        started, self.job = time.perf_counter(), job
        decoder = job.decoder
        self.plan = plan_batches(
            self._config, decoder.model, decoder.shape, job.rows.lengths, job.checks
        )
        rows, few = self.plan.rows, -(-self.plan.rows // 4)
        if decoder.device.type == "cpu":
            prompt_token, fast = _time(job, few, time.process_time)
            _, slow = _time(job, rows, time.process_time, most_tokens=_SHORT)
        else:
            _, fast = _time(job, few)
            prompt_token, slow = _time(job, rows)
        self.costs = np.array([prompt_token, *fit_steps((few, fast), (rows, slow))])
        self._timing = time.perf_counter() - started

    def _measure(self, out: Path) -> None:
        """What the captured traces are, and what they took besides steps: the record, further
        answers, writing."""
        job, decoder, manifest = self.job, self.job.decoder, read_manifest(out)
        model, device = decoder.model, decoder.device
        sizes = [
            (trace["prompt_length"], len(trace["tokens"]) - trace["prompt_length"])
            for trace in TraceBatchLoader(out).iter_traces()
        ]
        shared = job.rows.shared_tokens
        self.lengths = [(p - shared, max(1, a)) for p, a in sizes]
        if self._config.is_given:  # which are passed with their prompts
            self.lengths = [(p + a - shared, 0) for p, a in sizes]
        work = count_work(self.lengths, job.plan, self._config.new_tokens)
        self.costs = self.costs * (self.seconds / (self.costs @ work))
        self.bytes_per_trace = manifest.bytes / manifest.rows
        width = max(map(sum, sizes))
        if not self._config.is_given:
            width = max(p for p, _ in sizes) + decoder.max_new_tokens
        more_rows = max(0, self.plan.rows - min(job.plan.rows, len(sizes)))
        self.memory_bytes = _peak_memory() + 3 * more_rows * record_bytes(decoder.shape, width)
        self.row_bytes = row_bytes(model, decoder.shape, width)
        stored = next(model.parameters()).itemsize
        item = _GPU_WEIGHT_BYTES
        if device.type == "cuda":
            item = stored
            self.gpu_memory_bytes = torch.cuda.max_memory_reserved(device)
            self.gpu = recognize_gpu(torch.cuda.get_device_name(device))
        parameters = sum(weight.numel() for weight in model.parameters())
        cached = cache_bytes(model) * item // stored
        self.size = ModelSize(parameters, parameters * item, cached)


def _time(
    job: Job,
    rows: int,
    clock: Callable[[], float] | None = None,
    most_tokens: int | None = None,
) -> tuple[float, float]:
    """Seconds per token of a prompt, and per step, of a batch of `rows`."""
    shared = job.rows.shared_tokens
    end = None if most_tokens is None else shared + most_tokens
    prompts = [job.rows.timed(i % len(job.rows.lengths))[:end] for i in range(rows)]
    tokens = sum(len(prompt) - shared for prompt in prompts)
    passed, step = job.decoder.time_batch(prompts, steps=_STEPS, clock=clock)
    return max(passed, 1e-9) / tokens, max(step, 1e-9)


def _peak_memory() -> int:
    """The most memory that this process has taken."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def plan_capture(
    config: ExtractConfig,
    sample: SampleRun,
    questions: int,
    workers: int = 1,
    target: Gpu | None = None,
) -> CapturePlan:
    """Scale what a sample took to all questions that are not captured yet."""
    out, device = config.out, sample.job.decoder.device
    captured = read_manifest(out).rows if (out / MANIFEST_NAME).exists() else 0
    remaining = max(0, questions - captured)
    size, shards = min(config.shard_size, max(1, remaining)), -(-remaining // config.shard_size)
    tokens = [sum(one) for one in sample.lengths]
    mean = statistics.fmean(tokens) + sample.job.rows.shared_tokens
    plan, costs, notes = sample.plan, sample.costs, tuple[str, ...]()
    if target is not None:
        plan = _plan_on(target, sample, size)
    work = typical_shard(sample.lengths, size, plan, config.new_tokens)
    if target is not None:
        cached = mean - statistics.fmean(answer for _, answer in sample.lengths) / 2
        costs = costs_on(target, sample.size, cached, costs, sample.gpu, work)
        notes = (_explain_costs(target, sample.gpu),)
    shard_seconds, startup = float(costs @ work), sample.startup_seconds
    alone = shard_seconds * remaining / size
    seconds = alone if workers == 1 else shard_seconds * -(-shards // workers)
    total = int(remaining * sample.bytes_per_trace)
    gpu_memory = None
    if target is not None or device.type != "cpu":
        planned = sample.size.weight_bytes + plan.rows * sample.row_bytes
        gpu_memory = max(planned, sample.gpu_memory_bytes or 0)
    return CapturePlan(
        questions=questions,
        captured=questions - remaining,
        shards=shards,
        tokens=int(remaining * mean),
        tokens_per_trace=mean,
        bytes=total,
        requests=_requests(config, shards, plan.rows, total, shard_seconds),
        memory_bytes=sample.memory_bytes,
        gpu_memory_bytes=gpu_memory,
        rows=plan.rows,
        workers=workers,
        gpu=None if target is None else target.name,
        seconds=startup + seconds if remaining else 0.0,
        startup_seconds=startup,
        shard_seconds=shard_seconds,
        error=_relative_error(tokens),
        bottleneck=_find_bottleneck(costs * work, shards, workers, startup),
        sample=len(tokens),
        sample_seconds=sample.seconds,
        device=str(device),
        notes=notes,
    )


def _plan_on(gpu: Gpu, sample: SampleRun, size: int) -> BatchPlan:
    """As many rows as fit on the GPU. Raises InputError if the model does not."""
    memory, weights = gpu.gigabytes * 10**9, sample.size.weight_bytes
    if weights >= memory:
        raise InputError(
            f"the model's weights take {bytes_text(weights)}, and it has {bytes_text(memory)}. "
            "Choose a larger one, or use `quantize`.",
            setting="gpu",
            value=gpu.name,
        )
    rows = int((memory - weights) * _GPU_MEMORY_SHARE) // sample.row_bytes
    rows = max(1, min(MAX_ROWS, rows, size))
    rows = -(-size // -(-size // rows))
    return replace(sample.plan, rows=rows, tokens=2 * rows * 4096)


def _relative_error(tokens: Sequence[int]) -> float:
    """The 95% interval of the mean work per question."""
    if len(tokens) < 2:
        return math.inf
    return 1.96 * statistics.stdev(tokens) / math.sqrt(len(tokens)) / statistics.fmean(tokens)


def _requests(config: ExtractConfig, shards: int, rows: int, total: int, seconds: float) -> int:
    if not is_url(config.out):
        return 0
    batches, renewals = -(-config.shard_size // rows), seconds / _RENEWAL_SECONDS
    return int(shards * (_REQUESTS_PER_SHARD + batches + renewals)) + total // _PUT_PART_BYTES


def _find_bottleneck(
    shard: Float64[np.ndarray, "3"], shards: int, workers: int, startup_seconds: float
) -> str:
    """What takes longest, where a `shard` takes so many seconds for prompts, steps and rows."""
    shard_seconds, (prompts, fixed, by_row) = float(shard.sum()), shard.tolist()
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
    if startup_seconds > rounds * shard_seconds:
        return "loading and checking the model, which takes longer than the capture"
    steps = 1 - prompts / shard_seconds
    if steps < 0.5:
        return f"prompts: {1 - steps:.0%} of the time, limited by computation"
    is_fixed = fixed > by_row
    what = "reading the weights (larger batches help)" if is_fixed else "the rows in each step"
    return f"generating tokens: {steps:.0%} of the time, most of it {what}"


def _explain_costs(target: Gpu, here: Gpu | None) -> str:
    if here is not None:
        return f"scaled from the {here.name} here by the data sheets of both"
    return (
        f"from the data sheet of the {target.name} and the share of it that captures reach on an "
        "H200; measure a few questions there to be sure"
    )


def count_work(questions: Sequence[Lengths], plan: BatchPlan, max_new_tokens: int) -> Work:
    """What a shard takes; a finished answer leaves its batch."""
    prompts, answers = zip(*questions, strict=True)
    batches = make_batches(prompts, plan, max_new_tokens)
    steps = sum(max(answers[i] for i in batch) for batch in batches)
    return np.array([sum(prompts), steps, sum(answers)], float)


def typical_shard(
    sample: Sequence[Lengths], size: int, plan: BatchPlan, max_new_tokens: int
) -> Work:
    """What a shard of `size` questions like those of the sample takes on average."""
    draw = random.Random(0)
    shards = [draw.choices(sample, k=size) for _ in range(_SHARDS)]
    return np.mean([count_work(one, plan, max_new_tokens) for one in shards], axis=0)


def fit_steps(few: tuple[int, float], many: tuple[int, float]) -> tuple[float, float]:
    """Seconds of a step, and of each row in it, from steps with (rows, seconds)."""
    (small, fast), (large, slow) = few, many
    row = max(0.0, (slow - fast) / max(1, large - small))
    return max(0.0, slow - large * row), row


def limit_costs(size: ModelSize, gpu: Gpu, tokens: float) -> Costs:
    """The least that a GPU needs, with `tokens` in the cache of a row."""
    bandwidth = gpu.gigabytes_per_second * 1e9
    computed = 2 * size.parameters / (gpu.teraflops * 1e12)
    row = computed + tokens * size.cache_bytes / bandwidth
    return np.array([computed, size.weight_bytes / bandwidth, row])


def costs_on(
    gpu: Gpu, size: ModelSize, tokens: float, measured: Costs, here: Gpu | None, work: Work
) -> Costs:
    """The costs on another GPU: those measured on the one that is `here`, in the ratio of what both
    need at least; or, without one, the share of the limits that captures reach."""
    factor = 1 / _REACHED
    if here is not None:
        factor = float(measured @ work / (limit_costs(size, here, tokens) @ work))
    return limit_costs(size, gpu, tokens) * factor
