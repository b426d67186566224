"""The plan without measuring: what is requested, what the machine cannot do, and the reasons."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from clew.base.errors import InputError
from clew.engine import HardwarePlan, PlanRequest, plan_hardware
from clew.engine.plan import Machine, Timing, look_at_machine, read_limits
from tests.engine.planning.making import NEW_GPU, OLD_GPU, machine


def plan(on: Machine | None = None, *, processes: int = 1, **asked: Any) -> HardwarePlan:
    return plan_hardware(PlanRequest(**asked), machine=on or machine(), processes=processes)


@pytest.mark.parametrize(
    ("asked", "choice", "value", "reason"),
    [
        ({"amp": False}, "precision", "fp32", "requested with `amp=False`"),
        ({"amp": True}, "precision", "bf16", "requested with `amp=True`"),
        ({"precision": "bf16"}, "precision", "bf16", "as requested"),
        ({"compile": False}, "compile", False, "requested with `compile=False`"),
        ({"compile": True}, "compile", True, "requested with `compile=True`"),
        ({"cuda_graph": False}, "cuda_graph", False, "requested with `cuda_graph=False`"),
        (
            {"channels_last": False},
            "channels_last",
            False,
            "requested with `channels_last=False`",
        ),
        ({"num_workers": 5}, "num_workers", 5, "requested with `num_workers=5`"),
        (
            {"num_workers": 0},
            "num_workers",
            0,
            "requested with `num_workers=0`; batches are read on demand",
        ),
        ({"batch_size": 48}, "batch_size", 48, "requested with `batch_size=48`"),
        ({"grad_accum": 4}, "grad_accum", 4, "requested with `grad_accum=4`"),
        (
            {"max_cache_batches": 2},
            "max_cache_batches",
            2,
            "requested with `max_cache_batches=2`",
        ),
        (
            {"gradient_checkpointing": True},
            "gradient_checkpointing",
            True,
            "requested with `gradient_checkpointing=True`",
        ),
    ],
)
def test_requested_choices_are_made_and_explained(
    asked: dict[str, Any], choice: str, value: Any, reason: str
) -> None:
    made = plan(**asked)
    assert made.choices[choice] == value
    assert made.reasons[choice] == reason


def test_every_choice_has_a_reason() -> None:
    for on in (machine(), machine(gpus=(NEW_GPU,)), machine(gpus=(OLD_GPU,), cannot_compile="no")):
        made = plan(on)
        assert made.reasons.keys() == made.choices.keys()
        assert all(made.reasons.values())


def test_gpu_is_used_when_available() -> None:
    made = plan(machine(gpus=(NEW_GPU,), cores=16))
    assert (made.device, made.precision, made.pin_memory, made.non_blocking) == (
        *("cuda", "tf32"),
        *(True, True),
    )
    assert made.reasons["device"] == "New GPU, 80 GB"
    assert made.num_workers == 8
    assert plan(machine(gpus=(NEW_GPU,), cores=4)).num_workers == 2
    assert plan(machine(gpus=(NEW_GPU,)), device="cpu").device == "cpu"


def test_16_bit_format_follows_the_device() -> None:
    assert plan(machine(gpus=(NEW_GPU,)), amp=True).precision == "bf16"
    assert plan(machine(gpus=(OLD_GPU,)), amp=True).precision == "fp16"
    assert plan(machine(gpus=(OLD_GPU,)), amp=False).precision == "fp32"
    slow = plan(machine(bf16_instructions=""), amp=True)
    assert slow.precision == "bf16" and "it will be slow" in slow.reasons["precision"]


@pytest.mark.parametrize(
    ("asked", "on", "sentence"),
    [
        (
            {"precision": "fp16"},
            {},
            'precision is "fp16": it is only supported on GPUs. On the CPU, use bf16',
        ),
        (
            {"cuda_graph": True},
            {},
            "`cuda_graph=True` was given, but it is only available on a GPU",
        ),
        (
            {"compile": True},
            {"cannot_compile": "no C++ compiler was found (g++)"},
            "`compile=True` was given, but no C++ compiler was found (g++): install what",
        ),
        ({"device": "cuda"}, {}, 'device is "cuda": PyTorch sees no GPU'),
        ({"device": "cuda:1"}, {"gpus": (NEW_GPU,)}, 'device is "cuda:1": PyTorch sees 1 GPU'),
        ({"device": "tpu"}, {}, 'device is "tpu": choose from: cpu, cuda, or cuda:N'),
        ({"device": "cuda:x"}, {"gpus": (NEW_GPU,)}, 'device is "cuda:x": choose from: cpu'),
        ({"precision": "bf16"}, {"gpus": (OLD_GPU,)}, "Old GPU does not support it. Use fp16"),
        (
            {"cuda_graph": True, "gradient_checkpointing": True},
            {"gpus": (NEW_GPU,)},
            "a CUDA graph cannot capture gradient checkpointing",
        ),
    ],
)
def test_impossible_requests_are_refused(
    asked: dict[str, Any], on: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError) as error:
        plan(machine(**on), **asked)
    assert sentence in str(error.value)


def test_several_processes_share_a_batch_and_the_cores() -> None:
    made = plan(machine(gpus=(NEW_GPU,) * 2, cores=12), processes=2)
    assert (made.batch_size, made.process_batch, made.num_workers) == (32, 16, 4)
    assert "communication between 2 processes" in made.reasons["cuda_graph"]
    assert plan(processes=3).batch_size == 33
    with pytest.raises(
        InputError, match="batch_size is 33: it is not divisible by 2 processes; use 32"
    ):
        plan(processes=2, batch_size=33)


def test_gradient_checkpointing_disables_cuda_graph() -> None:
    made = plan(machine(gpus=(NEW_GPU,)), gradient_checkpointing=True)
    assert made.cuda_graph is False
    assert made.reasons["cuda_graph"] == "a CUDA graph cannot capture gradient checkpointing"


def test_plan_is_saved_as_json() -> None:
    timing = Timing(way="bf16", batch_size=32, seconds=0.002)
    made = HardwarePlan(timings=(timing,), max_cache_batches=2, reasons={"device": "because"})
    assert HardwarePlan.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert timing.samples_per_second == 16_000
    with pytest.raises(InputError, match="the saved hardware plan is invalid"):
        HardwarePlan.from_dict({"device": "cpu"})


def test_changed_choice_has_its_own_reason() -> None:
    made = plan().change("batch_size", 8, "memory ran out at 16")
    assert (made.batch_size, made.reasons["batch_size"]) == (8, "memory ran out at 16")
    assert made.change("grad_accum", 4, "asked").effective_batch == 32


def test_this_machine_is_detected() -> None:
    here = look_at_machine()
    assert here.cores >= 1
    assert here.free_memory_bytes > 0
    assert len(here.gpus) == torch.cuda.device_count()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of a file system that has only what a test puts there."""
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_container_limits_are_respected(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("0::/pod/box\n")
    group = root / "sys/fs/cgroup/pod/box"
    write(group / "cpu.max", "150000 100000\n")
    write(group / "memory.max", "max\n")
    write(group.parent / "cpu.max", "400000 100000\n")
    write(group.parent / "memory.max", "1000\n")
    write(group.parent / "memory.current", "700\n")
    write(group.parent / "memory.stat", "anon 500\ninactive_file 150\n")
    limits = read_limits(root)
    assert (limits.cores, limits.free_bytes) == (1.5, 450)


def test_cgroup_v1_limits_are_respected(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("5:cpu,cpuacct:/\n4:memory:/gone/in/here\n")
    write(root / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n")
    write(root / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n")
    write(root / "sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n")
    limits = read_limits(root)
    assert (limits.cores, limits.free_bytes) == (2.0, 0)


def test_machine_without_cgroup_limits_has_none(root: Path) -> None:
    assert read_limits(root).cores is None
    (root / "proc/self/cgroup").write_text("0::/\n")
    write(root / "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert (read_limits(root).cores, read_limits(root).free_bytes) == (None, None)
