"""What of a plan follows from the request and the machine alone. Calibration then revises what
can be measured."""

from typing import Any

from clew.engine.config import PlanRequest, Precision
from clew.engine.planning.hardware import Machine
from clew.engine.planning.loading import choose_loading
from clew.engine.planning.plan import HardwarePlan
from clew.engine.planning.refusals import refuse_impossible, refuse_missing_gpu
from clew.engine.planning.ways import can_graph, mixed_precision
from clew.wording import bytes_text, counted

DEFAULT_BATCH = 32

Choice = tuple[Any, str]


def choose_device(request: PlanRequest, machine: Machine) -> Choice:
    """The device and why; raises InputError when the one asked for is not there."""
    asked = f'as asked for with `device="{request.device}"`; ' if request.device else ""
    device = request.device or ("cuda" if machine.gpus else "cpu")
    if device != "cpu":
        refuse_missing_gpu(device, machine)
        gpu = machine.gpu(device)
        return device, f"{asked}{gpu.name}, {bytes_text(gpu.memory_bytes)}"
    memory = f"{bytes_text(machine.free_memory_bytes)} of memory free"
    here = f"{counted(machine.cores, 'core')}, {memory}"
    return device, f"{asked or 'PyTorch sees no GPU; '}{here}"


def choose_plainly(request: PlanRequest, machine: Machine, processes: int) -> HardwarePlan:
    """A plan that has measured nothing; raises InputError for what cannot be done here."""
    plan = HardwarePlan()
    plan = plan.change("device", *choose_device(request, machine))
    together = "as many as torchrun started" if processes > 1 else "not under torchrun"
    plan = plan.change("processes", processes, together)
    plan = plan.change("gradient_checkpointing", *_checkpointing(request))
    refuse_impossible(request, plan, machine)
    choices = {
        "precision": _precision(request, plan, machine),
        "compile": _compile(request, machine),
        "cuda_graph": _cuda_graph(request, plan),
        "channels_last": _channels_last(request),
        "batch_size": _batch_size(request, processes),
        "grad_accum": _grad_accum(request),
        "max_cache_batches": _max_cache(request),
    }
    for name, (value, why) in choices.items():
        plan = plan.change(name, value, why)
    return choose_loading(request, plan, machine)


def _checkpointing(request: PlanRequest) -> Choice:
    if request.gradient_checkpointing:
        return True, "as asked for with `gradient_checkpointing=True`"
    return False, "not asked for; `gradient_checkpointing=True` trades time for memory"


def _precision(request: PlanRequest, plan: HardwarePlan, machine: Machine) -> Choice:
    if request.precision is not None:
        return request.precision, "as asked for"
    mixed = mixed_precision(plan.device, machine)
    plain = _full_precision(plan, machine)
    if request.amp:
        slow = plan.device == "cpu" and not machine.bf16_instructions
        but = "; this CPU has no instructions for it, so it will be slow" if slow else ""
        return mixed, f"as asked for with `amp=True`{but}"
    if request.amp is False:
        return plain, "as asked for with `amp=False`"
    if plan.device == "cpu" and not machine.bf16_instructions:
        return plain, "this CPU has no bf16 instructions"
    return plain, f"not measured: {mixed} is tried on the real network when a run starts"


def _full_precision(plan: HardwarePlan, machine: Machine) -> Precision:
    """tf32 is what float32 layers multiply in on a GPU that has it."""
    return "tf32" if plan.device != "cpu" and machine.gpu(plan.device).has_bf16 else "fp32"


def _compile(request: PlanRequest, machine: Machine) -> Choice:
    if request.compile is not None:
        return request.compile, f"as asked for with `compile={request.compile}`"
    if machine.cannot_compile:
        return False, machine.cannot_compile
    return False, "not measured: tried on the real network when a run is long enough"


def _cuda_graph(request: PlanRequest, plan: HardwarePlan) -> Choice:
    if request.cuda_graph is not None:
        return request.cuda_graph, f"as asked for with `cuda_graph={request.cuda_graph}`"
    if plan.device == "cpu":
        return False, "only a GPU has them"
    if can_graph(plan):
        return False, "not measured: tried on the real network when a run starts"
    if plan.processes > 1:
        return False, f"a graph cannot hold the messages between {plan.processes} processes"
    return False, "a graph cannot hold gradient checkpointing"


def _channels_last(request: PlanRequest) -> Choice:
    if request.channels_last is not None:
        asked = "" if request.channels_last else " with `channels_last=False`"
        return request.channels_last, f"as asked for{asked}"
    return False, "not measured: tried on networks with 2-D convolutions when a run starts"


def _batch_size(request: PlanRequest, processes: int) -> Choice:
    if request.batch_size is not None:
        return request.batch_size, f"as asked for with `batch_size={request.batch_size}`"
    size = -(-DEFAULT_BATCH // processes) * processes
    return size, "not measured: the fastest is found on the real network when a run starts"


def _grad_accum(request: PlanRequest) -> Choice:
    if request.grad_accum is not None:
        return request.grad_accum, f"as asked for with `grad_accum={request.grad_accum}`"
    return 1, "every batch is a step of its own; `grad_accum=N` adds up N of them"


def _max_cache(request: PlanRequest) -> Choice:
    count = request.max_cache_batches
    if count is not None:
        return count, f"as asked for with `max_cache_batches={count}`"
    return None, "shards are mapped, so the system keeps in memory what fits and drops the rest"
