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

import torch

from clew.base.errors import InputError, StoppedError
from clew.base.progress import Event, Reporter, WorkEnded, WorkStarted, log_event
from clew.base.texts import bytes_text, suggest
from clew.base.urls import is_url
from clew.hallucination.capture.config import ExtractConfig
from clew.hallucination.capture.extracting import extract
from clew.hallucination.capture.job import MAX_ROWS, Job, plan_batches
from clew.hallucination.llm.memory import (
    BatchPlan,
    cache_bytes,
    make_batches,
    record_bytes,
    row_bytes,
)
from clew.hallucination.llm.models import LoadedModel
from clew.hallucination.questions import QuestionSet, load_questions
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


class AskedQuestion(NamedTuple):
    """The tokens of a prompt that are passed for it alone, and of its answer."""

    prompt: int
    answer: int


class CaptureWork(NamedTuple):
    """What some questions take: tokens of prompts, steps, and rows in all of these steps."""

    prompt_tokens: float
    steps: float
    row_steps: float


class Costs(NamedTuple):
    """Seconds per token of a prompt, per step, and per row in it. `factor` is what a capture takes
    besides: the record, further answers, writing."""

    prompt_token: float
    step: float
    row: float
    factor: float = 1.0

    def step_seconds(self, work: CaptureWork) -> float:
        return self.factor * (self.step * work.steps + self.row * work.row_steps)

    def seconds(self, work: CaptureWork) -> float:
        return self.factor * self.prompt_token * work.prompt_tokens + self.step_seconds(work)


class ModelSize(NamedTuple):
    """What a pass computes and reads: the weights, and the keys and values of one token."""

    parameters: int
    weight_bytes: int
    cache_bytes: int


class Gpu(NamedTuple):
    """A GPU by NVIDIA's data sheet of the SXM module, or of the PCIe card where there is none:
    dense BF16 or FP16 Tensor Core (half of what is given "with sparsity"), memory bandwidth,
    memory."""

    name: str
    teraflops: float
    gigabytes_per_second: float
    gigabytes: int


GPUS = {
    "t4": Gpu("T4", 65, 320, 16),
    "v100": Gpu("V100", 125, 900, 32),
    "a10": Gpu("A10", 125, 600, 24),
    "a100": Gpu("A100 80GB", 312, 2039, 80),
    "a100-40gb": Gpu("A100 40GB", 312, 1555, 40),
    "l4": Gpu("L4", 121, 300, 24),
    "l40s": Gpu("L40S", 362, 864, 48),
    "rtx4090": Gpu("GeForce RTX 4090", 165, 1008, 24),
    "h100": Gpu("H100", 989, 3350, 80),
    "h100-pcie": Gpu("H100 PCIe", 756, 2000, 80),
    "h200": Gpu("H200", 989, 4800, 141),
    "b200": Gpu("B200", 2250, 8000, 180),
}


def find_gpu(name: str) -> Gpu:
    """Raises InputError for one that is not in the table."""
    if name.lower() not in GPUS:
        known = f"unknown GPU{suggest(name, [*GPUS])}. Choose from: {', '.join(GPUS)}."
        raise InputError(known, setting="gpu", value=name)
    return GPUS[name.lower()]


def recognize_gpu(device_name: str) -> Gpu | None:
    """The GPU of the table that the driver calls "NVIDIA H100 80GB HBM3"; None if it is none."""
    words = device_name.lower().replace("-", " ").replace("rtx ", "rtx").split()
    fitting = [key for key in GPUS if {*key.split("-")} <= {*words}]
    return GPUS[max(fitting, key=len)] if fitting else None


@dataclass(frozen=True, kw_only=True)
class MeasuredSample:
    """What the sample took, and how the whole run would be batched."""

    questions: tuple[AskedQuestion, ...]
    shared_tokens: int
    bytes_per_trace: float
    seconds: float
    startup_seconds: float
    memory_bytes: int
    gpu_memory_bytes: int | None
    costs: Costs
    plan: BatchPlan
    max_new_tokens: int
    size: ModelSize
    row_bytes: int
    device: torch.device

    @property
    def gpu(self) -> Gpu | None:
        """The one that it was measured on, if its data sheet is known."""
        is_gpu = self.device.type == "cuda"
        return recognize_gpu(torch.cuda.get_device_name(self.device)) if is_gpu else None


def plan_capture(
    config: ExtractConfig,
    measured: MeasuredSample,
    questions: int,
    workers: int = 1,
    target: Gpu | None = None,
) -> CapturePlan:
    """Scale what a sample took to all questions that are not captured yet."""
    out = config.out
    captured = read_manifest(out).rows if (out / MANIFEST_NAME).exists() else 0
    remaining = max(0, questions - captured)
    sizes, size = measured.questions, min(config.shard_size, max(1, remaining))
    mean = statistics.fmean(map(sum, sizes)) + measured.shared_tokens
    plan = measured.plan if target is None else _plan_on(target, measured, size)
    work, costs = typical_shard(sizes, size, plan, measured.max_new_tokens), measured.costs
    notes: tuple[str, ...] = ()
    if target is not None:
        cached = mean - statistics.fmean(one.answer for one in sizes) / 2
        costs = costs_on(target, measured.size, cached, costs, measured.gpu, work)
        notes = (_explain_costs(target, measured.gpu),)
    shard_seconds, shards = costs.seconds(work), -(-remaining // config.shard_size)
    alone = shard_seconds * remaining / size
    seconds = alone if workers == 1 else shard_seconds * -(-shards // workers)
    total = int(remaining * measured.bytes_per_trace)
    gpu_memory = None
    if target is not None or measured.device.type != "cpu":
        planned = measured.size.weight_bytes + plan.rows * measured.row_bytes
        gpu_memory = max(planned, measured.gpu_memory_bytes or 0)
    return CapturePlan(
        questions=questions,
        captured=questions - remaining,
        shards=shards,
        tokens=int(remaining * mean),
        tokens_per_trace=mean,
        bytes=total,
        requests=_requests(config, shards, plan.rows, total, shard_seconds),
        memory_bytes=measured.memory_bytes,
        gpu_memory_bytes=gpu_memory,
        rows=plan.rows,
        workers=workers,
        gpu=None if target is None else target.name,
        seconds=measured.startup_seconds + seconds if remaining else 0.0,
        startup_seconds=measured.startup_seconds,
        shard_seconds=shard_seconds,
        error=_relative_error([sum(one) for one in sizes]),
        bottleneck=_find_bottleneck(
            costs, work, shards, workers, shard_seconds, measured.startup_seconds
        ),
        sample=len(sizes),
        sample_seconds=measured.seconds,
        device=str(measured.device),
        notes=notes,
    )


def _plan_on(gpu: Gpu, measured: MeasuredSample, size: int) -> BatchPlan:
    """As many rows as fit on the GPU. Raises InputError if the model does not."""
    memory, weights = gpu.gigabytes * 10**9, measured.size.weight_bytes
    if weights >= memory:
        raise InputError(
            f"the model's weights take {bytes_text(weights)}, and it has {bytes_text(memory)}. "
            "Choose a larger one, or use `quantize`.",
            setting="gpu",
            value=gpu.name,
        )
    rows = int((memory - weights) * _GPU_MEMORY_SHARE) // measured.row_bytes
    rows = max(1, min(MAX_ROWS, rows, size))
    rows = -(-size // -(-size // rows))
    return replace(measured.plan, rows=rows, tokens=2 * rows * 4096)


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
    costs: Costs,
    work: CaptureWork,
    shards: int,
    workers: int,
    shard_seconds: float,
    startup_seconds: float,
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
    if startup_seconds > rounds * shard_seconds:
        return "loading and checking the model, which takes longer than the capture"
    steps = costs.step_seconds(work) / costs.seconds(work)
    if steps < 0.5:
        return f"prompts: {1 - steps:.0%} of the time, limited by computation"
    fixed = costs.step * work.steps / (costs.step * work.steps + costs.row * work.row_steps)
    what = "reading the weights (larger batches help)" if fixed > 0.5 else "the rows in each step"
    return f"generating tokens: {steps:.0%} of the time, most of it {what}"


def _explain_costs(target: Gpu, here: Gpu | None) -> str:
    if here is not None:
        return f"scaled from the {here.name} here by the data sheets of both"
    return (
        f"from the data sheet of the {target.name} and the share of it that captures reach on an "
        "H200; measure a few questions there to be sure"
    )


def measure_sample(
    config: ExtractConfig,
    questions: QuestionSet,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    loaded: LoadedModel | None = None,
) -> MeasuredSample:
    """Capture some of the questions into a temporary folder. Raises ClewError as `extract` does."""
    count = min(SAMPLE, len(questions.questions))
    # From all over the set: files are often sorted by subject.
    places = [i * len(questions.questions) // count for i in range(count)]
    some = [questions.questions[place] for place in places]
    with tempfile.TemporaryDirectory(prefix="clew-dry-run-") as scratch:
        out = Path(scratch) / "traces"
        watch = _Watch(reporter or log_event, config)
        extract(
            replace(config, out=out, num_samples=None, part=Part(), join=False),
            watch,
            should_stop,
            loaded=loaded,
            questions=replace(questions, questions=some, skipped=[]),
            on_ready=watch.on_ready,
        )
        if should_stop():
            raise StoppedError("stopped; nothing was captured.", is_resumable=False)
        return watch.finish(out)


class _Watch:
    """Watches the capture of the sample: what each part of it takes."""

    def __init__(self, reporter: Reporter, config: ExtractConfig) -> None:
        self._reporter, self._config = reporter, config
        self._begun = time.perf_counter()
        self._work: WorkStarted | None = None
        self._capturing = self._seconds = self._startup = self._timing = 0.0

    def __call__(self, event: Event, /) -> None:
        self._reporter(event)
        if isinstance(event, WorkStarted):
            self._work, self._capturing = event, time.perf_counter()
            self._startup = self._capturing - self._begun - self._timing
        elif isinstance(event, WorkEnded) and self._work is not None:
            self._seconds = time.perf_counter() - self._capturing

    def on_ready(self, job: Job) -> None:
        """Time steps of few and of many rows, with the prompts of the sample."""
        started = time.perf_counter()
        self._job, decoder, prompts = job, job.decoder, job.prompts
        config = self._config
        self._plan = plan_batches(
            model=decoder.model,
            shape=decoder.shape,
            prompt_lengths=[len(prompt) for prompt in prompts],
            max_new_tokens=decoder.max_new_tokens + job.checks.room,
            batch_size=config.shard_size,
            rows=config.generation_batch,
        )
        self._costs = _time_steps(job, self._plan.rows)
        self._timing = time.perf_counter() - started

    def finish(self, out: Path) -> MeasuredSample:
        job, decoder, manifest = self._job, self._job.decoder, read_manifest(out)
        sizes = [
            (trace["prompt_length"], len(trace["tokens"]) - trace["prompt_length"])
            for trace in TraceBatchLoader(out).iter_traces()
        ]
        asked = tuple(AskedQuestion(p - job.shared_tokens, max(1, a)) for p, a in sizes)
        work = count_work(asked, job.plan, decoder.max_new_tokens)
        width = max(p for p, _ in sizes) + decoder.max_new_tokens
        more_rows = max(0, self._plan.rows - min(job.plan.rows, len(asked)))
        model, device = decoder.model, decoder.device
        is_gpu, stored = device.type == "cuda", next(model.parameters()).itemsize
        item = stored if is_gpu else _GPU_WEIGHT_BYTES
        parameters = sum(weight.numel() for weight in model.parameters())
        return MeasuredSample(
            questions=asked,
            shared_tokens=job.shared_tokens,
            bytes_per_trace=manifest.bytes / manifest.rows,
            seconds=self._seconds,
            startup_seconds=self._startup,
            memory_bytes=_peak_memory() + 3 * more_rows * record_bytes(decoder.shape, width),
            gpu_memory_bytes=torch.cuda.max_memory_reserved(device) if is_gpu else None,
            costs=self._costs._replace(factor=self._seconds / self._costs.seconds(work)),
            plan=self._plan,
            max_new_tokens=decoder.max_new_tokens,
            size=ModelSize(parameters, parameters * item, cache_bytes(model) * item // stored),
            row_bytes=row_bytes(model, decoder.shape, width),
            device=device,
        )


def _time_steps(job: Job, rows: int) -> Costs:
    """Steps of few and of many rows. Other processes disturb a CPU's own time less than the
    clock's. It takes long to pass prompts, and as long for each token of few as of many."""
    few = -(-rows // 4)
    if job.decoder.device.type == "cpu":
        prompt_token, fast = _time(job, few, time.process_time)
        _, slow = _time(job, rows, time.process_time, most_tokens=_SHORT)
    else:
        _, fast = _time(job, few)
        prompt_token, slow = _time(job, rows)
    step, row = fit_steps((few, fast), (rows, slow))
    return Costs(prompt_token, step, row)


def _time(
    job: Job,
    rows: int,
    clock: Callable[[], float] | None = None,
    most_tokens: int | None = None,
) -> tuple[float, float]:
    """Seconds per token of a prompt, and per step, of a batch of `rows`."""
    shared = job.shared_tokens
    end = None if most_tokens is None else shared + most_tokens
    prompts = [job.prompts[i % len(job.prompts)][:end] for i in range(rows)]
    tokens = sum(len(prompt) - shared for prompt in prompts)
    passed, step = job.decoder.time_batch(prompts, steps=_STEPS, clock=clock)
    return max(passed, 1e-9) / tokens, max(step, 1e-9)


def _peak_memory() -> int:
    """The most memory that this process has taken."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def count_work(
    questions: Sequence[AskedQuestion], plan: BatchPlan, max_new_tokens: int
) -> CaptureWork:
    """What a shard takes; a finished answer leaves its batch."""
    batches = make_batches([question.prompt for question in questions], plan, max_new_tokens)
    steps = sum(max(questions[i].answer for i in batch) for batch in batches)
    prompts, answers = (sum(sizes) for sizes in zip(*questions, strict=True))
    return CaptureWork(prompts, steps, answers)


def typical_shard(
    sample: Sequence[AskedQuestion], size: int, plan: BatchPlan, max_new_tokens: int
) -> CaptureWork:
    """What a shard of `size` questions like those of the sample takes on average."""
    draw = random.Random(0)
    shards = [draw.choices(sample, k=size) for _ in range(_SHARDS)]
    works = [count_work(one, plan, max_new_tokens) for one in shards]
    return CaptureWork(*(sum(parts) / _SHARDS for parts in zip(*works, strict=True)))


def fit_steps(few: tuple[int, float], many: tuple[int, float]) -> tuple[float, float]:
    """Seconds of a step, and of each row in it, from steps with (rows, seconds)."""
    (small, fast), (large, slow) = few, many
    row = max(0.0, (slow - fast) / max(1, large - small))
    step = max(0.0, slow - large * row)
    return step, row


def limit_costs(size: ModelSize, gpu: Gpu, tokens: float) -> Costs:
    """The least that a GPU needs, with `tokens` in the cache of a row."""
    bandwidth = gpu.gigabytes_per_second * 1e9
    computed = 2 * size.parameters / (gpu.teraflops * 1e12)
    row = computed + tokens * size.cache_bytes / bandwidth
    return Costs(computed, size.weight_bytes / bandwidth, row)


def costs_on(
    gpu: Gpu, size: ModelSize, tokens: float, measured: Costs, here: Gpu | None, work: CaptureWork
) -> Costs:
    """The costs on another GPU: those measured on the one that is `here`, in the ratio of what both
    need at least; or, without one, the share of the limits that captures reach."""
    factor = 1 / _REACHED
    if here is not None:
        factor = measured.seconds(work) / limit_costs(size, here, tokens).seconds(work)
    return limit_costs(size, gpu, tokens)._replace(factor=factor)
