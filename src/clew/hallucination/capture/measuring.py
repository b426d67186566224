"""Measure a capture: a few questions are captured for real into a temporary folder."""

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from clew.base.errors import StoppedError
from clew.base.progress import Event, Reporter, WorkEnded, WorkStarted, log_event
from clew.hallucination.capture.config import ExtractConfig
from clew.hallucination.capture.device_map import model_device
from clew.hallucination.capture.extracting import extract
from clew.hallucination.capture.job import Job
from clew.hallucination.capture.models import LoadedModel
from clew.hallucination.capture.plan import (
    BatchPlan,
    cache_bytes,
    plan_batches,
    record_bytes,
    row_bytes,
)
from clew.hallucination.capture.prediction import (
    AskedQuestion,
    Costs,
    ModelSize,
    count_work,
    fit_steps,
)
from clew.hallucination.questions import QuestionSet
from clew.hallucination.traces import TraceBatchLoader
from clew.storage import Part, read_manifest

SAMPLE = 50
_STEPS = 4
# Of each prompt, where only steps are timed and passing prompts takes long.
_SHORT = 8
# What a weight takes on a GPU, for a model that is measured on a CPU in float32.
_GPU_WEIGHT_BYTES = 2


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
    drops_rows: bool
    size: ModelSize
    row_bytes: int
    device: torch.device


def measure_sample(
    config: ExtractConfig,
    questions: QuestionSet,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    loaded: LoadedModel | None = None,
) -> MeasuredSample:
    """Capture some of the questions into a temporary folder. Raises ClewError as `extract` does."""
    some = _spread(questions.questions, SAMPLE)
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


def _spread(questions: Sequence[Any], count: int) -> list[Any]:
    """Questions from all over the set: files are often sorted by subject."""
    count = min(count, len(questions))
    return [questions[i * len(questions) // count] for i in range(count)]


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
        shared = len(decoder.batch_model.prefix.tokens)
        sizes = [
            (trace["prompt_length"], len(trace["tokens"]) - trace["prompt_length"])
            for trace in TraceBatchLoader(out).iter_traces()
        ]
        asked = tuple(AskedQuestion(prompt=p - shared, answer=max(1, a)) for p, a in sizes)
        drops_rows = not decoder.batch_model.graphs
        work = count_work(asked, job.plan, decoder.max_new_tokens, drops_rows=drops_rows)
        factor = self._seconds / self._costs.seconds(work)
        width = max(p for p, _ in sizes) + decoder.max_new_tokens
        more_rows = max(0, self._plan.rows - min(job.plan.rows, len(asked)))
        model, device = decoder.model, model_device(decoder.model)
        item = _GPU_WEIGHT_BYTES if device.type == "cpu" else next(model.parameters()).itemsize
        parameters = sum(weight.numel() for weight in model.parameters())
        return MeasuredSample(
            questions=asked,
            shared_tokens=shared,
            bytes_per_trace=manifest.bytes / manifest.rows,
            seconds=self._seconds,
            startup_seconds=self._startup,
            memory_bytes=_peak_memory() + 3 * more_rows * record_bytes(decoder.shape, width),
            gpu_memory_bytes=_peak_gpu_memory(device),
            costs=replace(self._costs, factor=factor),
            plan=self._plan,
            max_new_tokens=decoder.max_new_tokens,
            drops_rows=drops_rows,
            size=ModelSize(
                parameters=parameters,
                weight_bytes=parameters * item,
                cache_bytes=cache_bytes(model) * item // next(model.parameters()).itemsize,
            ),
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
    return Costs(prompt_token=prompt_token, step=step, row=row)


def _time(
    job: Job,
    rows: int,
    clock: Callable[[], float] | None = None,
    most_tokens: int | None = None,
) -> tuple[float, float]:
    """Seconds per token of a prompt, and per step, of a batch of `rows`."""
    shared = len(job.decoder.batch_model.prefix.tokens)
    end = None if most_tokens is None else shared + most_tokens
    prompts = [job.prompts[i % len(job.prompts)][:end] for i in range(rows)]
    tokens = sum(len(prompt) - shared for prompt in prompts)
    passed, step = job.decoder.time_batch(prompts, steps=_STEPS, clock=clock)
    return max(passed, 1e-9) / tokens, max(step, 1e-9)


def _peak_memory() -> int:
    """The most memory that this process has taken."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _peak_gpu_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
