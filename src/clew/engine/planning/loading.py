"""How batches come to the device: how many threads read them, and how they are copied."""

import math

from clew.engine.config import PlanRequest
from clew.engine.planning.hardware import Machine
from clew.engine.planning.plan import HardwarePlan
from clew.wording import counted, step_text

_MAX_WORKERS = 8
_SPARED_CORES = 2  # for the loop itself and for whatever else the machine does
# Threads that read while a GPU is busy share the interpreter with the loop: count on half speed.
_SLOWER_BESIDE_A_STEP = 2


def choose_loading(
    request: PlanRequest,
    plan: HardwarePlan,
    machine: Machine,
    *,
    read_seconds: float | None = None,
    step_seconds: float | None = None,
) -> HardwarePlan:
    """With the time to read a batch and to train on it, as many threads as keep up; without, as
    many as the cores allow."""
    is_cuda = plan.device != "cpu"
    workers, why = _workers(request, plan, machine, read_seconds, step_seconds)
    plan = plan.change("num_workers", workers, why)
    kept = "they live on from epoch to epoch"
    plan = plan.change(
        "persistent_workers", workers > 0, kept if workers else "there are no workers"
    )
    ahead = "batches that each worker reads ahead"
    plan = plan.change("prefetch_factor", 2, ahead if workers else "there are no workers")
    pinned = "copies to the GPU run beside the step" if is_cuda else "there is no GPU to copy to"
    plan = plan.change("pin_memory", is_cuda, pinned)
    return plan.change("non_blocking", is_cuda, pinned)


def _workers(
    request: PlanRequest,
    plan: HardwarePlan,
    machine: Machine,
    read_seconds: float | None,
    step_seconds: float | None,
) -> tuple[int, str]:
    if request.num_workers is not None:
        when = "; batches are read when they are asked for" if request.num_workers == 0 else ""
        return request.num_workers, f"as asked for with `num_workers={request.num_workers}`{when}"
    cores = max(1, machine.cores // plan.processes)
    is_cpu = plan.device == "cpu"
    if read_seconds is None or step_seconds is None:
        if is_cpu:
            return 1, f"reads ahead; the step itself needs the {counted(cores, 'core')}"
        return _most(cores, is_cpu), f"of {counted(cores, 'core')}"
    keep_up = read_seconds / step_seconds
    wanted = math.ceil(keep_up) if is_cpu else math.ceil(_SLOWER_BESIDE_A_STEP * keep_up) + 1
    workers = max(1, min(wanted, _most(cores, is_cpu)))
    took = f"a batch took {step_text(read_seconds)} to read, {step_text(step_seconds)} to train on"
    return workers, f"{took}; {counted(cores, 'core')}"


def _most(cores: int, is_cpu: bool) -> int:
    return cores if is_cpu else max(1, min(cores - _SPARED_CORES, _MAX_WORKERS))
