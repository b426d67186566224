"""A dry run predicts what a capture takes, and captures nothing."""

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.base.errors import InputError
from clew.base.progress import log_event
from clew.base.urls import as_path
from clew.hallucination.capture import ExtractConfig, LoadedModel
from clew.hallucination.capture.dry_run import (
    ModelSize,
    SampleRun,
    costs_on,
    count_work,
    fit_steps,
    limit_costs,
    plan_capture,
    typical_shard,
)
from clew.hallucination.capture.gpus import GPUS, find_gpu, recognize_gpu
from clew.hallucination.llm.memory import BatchPlan
from clew.hallucination.questions import load_questions
from tests.stores import one_thread, tiny_config

PLAN = BatchPlan(rows=2, tokens=10**6)
LLAMA_7B = ModelSize(parameters=6_738_000_000, weight_bytes=13_476_000_000, cache_bytes=524_288)


@pytest.fixture(scope="module")
def measured(model_folder: Path, loaded: LoadedModel, questions_file: Path) -> SampleRun:
    config = tiny_config(model_folder, questions_file, Path("unused"))
    sample = SampleRun(config, load_questions(str(questions_file)), log_event)
    with one_thread():
        sample.capture(loaded)
    return sample


@pytest.fixture
def config(model_folder: Path, questions_file: Path, tmp_path: Path) -> ExtractConfig:
    return tiny_config(model_folder, questions_file, tmp_path / "store")


@pytest.mark.slow
def test_tokens_and_bytes_are_those_of_the_real_run(
    config: ExtractConfig, measured: SampleRun, compact_store: Path
) -> None:
    plan, real = plan_capture(config, measured, 70), clew.TraceBatchLoader(compact_store)
    tokens = sum(len(trace["tokens"]) for trace in real.iter_traces())
    assert (plan.questions, plan.shards, plan.sample) == (70, 4, 50)
    assert plan.tokens == pytest.approx(tokens, rel=0.1)
    assert plan.bytes == pytest.approx(real.manifest.bytes, rel=0.3)
    assert plan.seconds > plan.startup_seconds > 0
    assert plan.requests == 0
    assert not config.out.exists()


@pytest.mark.slow
def test_more_workers_than_shards_are_the_bottleneck(
    config: ExtractConfig, measured: SampleRun
) -> None:
    plan = plan_capture(config, measured, 70, 64, find_gpu("h100"))
    assert plan.bottleneck.startswith("the number of shards: 4 for 64 workers")
    assert plan.gpu == "H100"


def test_workers_that_finish_too_often_wait_for_the_manifest(
    config: ExtractConfig, measured: SampleRun
) -> None:
    plan = plan_capture(config, measured, 10**7, 1024, find_gpu("h100"))
    assert plan.bottleneck.startswith("the manifest: ")


def test_requests_are_those_of_an_object_store(config: ExtractConfig, measured: SampleRun) -> None:
    plan = plan_capture(replace(config, out=as_path("s3://bucket/traces")), measured, 70)
    assert plan.requests >= (11 + 3) * 4


def test_what_is_captured_already_is_not_predicted(
    config: ExtractConfig, measured: SampleRun, compact_store: Path
) -> None:
    plan = plan_capture(replace(config, out=compact_store), measured, 70)
    assert (plan.captured, plan.seconds, plan.bytes) == (70, 0.0, 0)


def test_answers_leave_their_batch_when_they_end() -> None:
    prompts, steps, row_steps = count_work([(10, n) for n in (1, 5, 2, 2)], PLAN, 8)
    assert (prompts, steps, row_steps) == (40, 5 + 2, 1 + 5 + 2 + 2)


def test_a_shard_has_the_mean_of_the_sample() -> None:
    prompts, _, row_steps = typical_shard(
        [(10, 4), (30, 8)], 500, BatchPlan(rows=50, tokens=10**6), 8
    )
    assert prompts == pytest.approx(500 * 20, rel=0.05)
    assert row_steps == pytest.approx(500 * 6, rel=0.05)


def test_steps_are_fitted_to_two_sizes() -> None:
    assert fit_steps((10, 2.0), (30, 4.0)) == pytest.approx((1.0, 0.1))
    assert fit_steps((10, 4.0), (30, 4.0)) == pytest.approx((4.0, 0.0))


def test_a_gpu_is_scaled_by_what_limits_it() -> None:
    """Prompts by computation, steps of few rows by the memory."""
    measured = 2.0 * np.array([1e-5, 1e-2, 1e-6])
    prompts, steps = np.array([1e6, 0, 0]), np.array([0, 1e3, 0])
    a100, h100 = find_gpu("a100"), find_gpu("h100")
    for work, ratio in ((prompts, 312 / 989), (steps, 2039 / 3350)):
        found = costs_on(h100, LLAMA_7B, 60, measured, a100, work) @ work
        assert found == pytest.approx(measured @ work * ratio)


def test_an_unmeasured_gpu_reaches_the_share_of_its_limits_that_an_h200_did() -> None:
    """docs/benchmarks.md: 290 traces/s of 30 and 32 tokens, 500 at a time."""
    work = np.array([500.0 * 30, 32, 500 * 32])
    measured = limit_costs(LLAMA_7B, find_gpu("h200"), 46)
    found = costs_on(find_gpu("H200"), LLAMA_7B, 46, measured, None, work)
    assert 500 / (found @ work) == pytest.approx(290, rel=0.05)


def test_a_model_that_a_gpu_has_no_memory_for_is_refused(
    config: ExtractConfig, measured: SampleRun
) -> None:
    large = copy(measured)
    large.size = LLAMA_7B
    assert plan_capture(config, large, 70, 1, find_gpu("t4")).gpu == "T4"
    large.size = LLAMA_7B._replace(weight_bytes=140 * 10**9)
    with pytest.raises(InputError, match="weights take 140 GB, and it has 16 GB"):
        plan_capture(config, large, 70, 1, find_gpu("t4"))


@pytest.mark.slow
def test_a_dry_run_of_the_command_writes_nothing(loaded: LoadedModel, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": loaded, "questions": ["Who?"], "out": tmp_path / "store"}
    with one_thread():
        plan = clew.extract(**settings, dry_run=True, max_new_tokens=2)
    assert plan.as_dict()["hours"] == plan.hours > 0
    assert not any(tmp_path.iterdir())
    with pytest.raises(InputError, match='gpu is "h10": unknown GPU'):
        clew.extract(**settings, dry_run=True, gpu="h10")
    with pytest.raises(InputError, match="gpu .*dry_run"):
        clew.extract(**settings, gpu="h100")


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
    ],
)
def test_the_drivers_names_are_recognized(driver: str, name: str) -> None:
    assert recognize_gpu(driver) == GPUS[name]
    assert recognize_gpu("GeForce GT 710") is None
