"""What follows from the request and the machine alone: the plain plan, what is impossible here, and
what calibration has to measure."""

import math
from dataclasses import replace
from itertools import product

import torch

from clew.base.errors import InputError
from clew.base.texts import bytes_text, counted, step_text
from clew.engine.config import PlanRequest, Precision
from clew.engine.plan import Choice, HardwarePlan, Machine, StepVariant

DEFAULT_BATCH = 32
_GPU_SHARE, _RAM_SHARE = 0.6, 0.5


_MAX_WORKERS = 8
_SPARED_CORES = 2  # for the loop itself and for whatever else the machine does
# Threads that read while a GPU is busy share the GIL with the loop: count on half speed.
_SLOWER_BESIDE_A_STEP = 2


def choose_plainly(request: PlanRequest, machine: Machine, processes: int) -> HardwarePlan:
    """The plan before anything is measured; raises InputError for what is impossible here."""
    together = "as many as torchrun started" if processes > 1 else "not under torchrun"
    checkpointing = "not requested; `gradient_checkpointing=True` trades time for memory"
    plan = HardwarePlan().change_all(
        {
            "device": _choose_device(request.device, machine),
            "processes": (processes, together),
            "gradient_checkpointing": _requested(request, "gradient_checkpointing")
            if request.gradient_checkpointing
            else (False, checkpointing),
        }
    )
    _refuse_impossible(request, plan, machine)
    plain = _plain_choices(plan, machine)
    fixed = {
        name: _requested(request, name) for name in plain if getattr(request, name) is not None
    }
    loading = choose_loading(request, plan, machine)
    precision = _precision(request, plan, machine)
    plan = plan.change_all({"precision": precision, **plain, **fixed, **loading})
    return replace(plan, reasons={**plan.reasons, **request.reasons})


def _requested(request: PlanRequest, name: str) -> Choice:
    value = getattr(request, name)
    return value, f"requested with `{name}={value}`"


def _plain_choices(plan: HardwarePlan, machine: Machine) -> dict[str, Choice]:
    """What is chosen where nothing is requested, before anything is measured."""
    most, cores = torch.get_num_threads(), _count_cores(plan, machine)
    long_enough = "not measured: tried on the actual network if the run is long enough"
    return {
        "compile": (False, machine.cannot_compile or long_enough),
        "cuda_graph": (
            False,
            _why_no_graph(plan) or "not measured: tried on the actual network when a run starts",
        ),
        "channels_last": (
            False,
            "not measured: tried on networks with 2-D convolutions when a run starts",
        ),
        "batch_size": (
            -(-DEFAULT_BATCH // plan.processes) * plan.processes,
            "not measured: the fastest batch size is found on the actual network when a run starts",
        ),
        "grad_accum": (
            1,
            "every batch is one optimizer step; `grad_accum=N` accumulates N of them",
        ),
        "max_cache_batches": (
            None,
            "shards are memory-mapped: the operating system caches as much of them as fits in "
            "memory",
        ),
        "threads": (
            (cores, "one per core") if most >= cores else (most, "as many as PyTorch was given")
        ),
    }


def open_variants(request: PlanRequest, plan: HardwarePlan, machine: Machine) -> list[StepVariant]:
    """The variants of a step that the request leaves open on this machine, starting with the
    plan's own. torch.compile is not among them: trying it with each would take too long."""
    layouts = (False, True) if request.channels_last is None else (plan.channels_last,)
    graphs_open = request.cuda_graph is None and not _why_no_graph(plan)
    launches = (False, True) if graphs_open else (plan.cuda_graph,)
    precisions = [plan.precision]
    has_mixed = plan.device != "cpu" or machine.bf16_instructions
    if request.precision is None and request.amp is None and has_mixed:
        precisions.append(_mixed_precision(plan.device, machine))
    plain = replace(plan.variant, compile=False)
    return [
        replace(plain, precision=precision, channels_last=layout, cuda_graph=graph)
        for precision, layout, graph in product(precisions, layouts, launches)
    ]


def _mixed_precision(device: str, machine: Machine) -> Precision:
    """The device's 16-bit format. fp16 requires loss scaling: only for GPUs that lack bf16."""
    return "bf16" if device == "cpu" or machine.gpu(device).has_bf16 else "fp16"


def _why_no_graph(plan: HardwarePlan) -> str:
    """Why the step cannot be a CUDA graph, "" if it can."""
    if plan.device == "cpu":
        return "it is only available on a GPU"
    if plan.processes > 1:
        return f"a CUDA graph cannot capture the communication between {plan.processes} processes"
    if plan.gradient_checkpointing:
        return "a CUDA graph cannot capture gradient checkpointing"
    return ""


def memory_limit(plan: HardwarePlan, machine: Machine) -> int:
    """The bytes that a step may use."""
    if plan.device == "cpu":
        return round(_RAM_SHARE * machine.free_memory_bytes / plan.processes)
    gpu = machine.gpu(plan.device)
    return round(min(_GPU_SHARE * gpu.memory_bytes, gpu.free_bytes))


def _choose_device(wanted: str | None, machine: Machine) -> Choice:
    """The device and why; raises InputError when the requested one is not available."""
    asked = f'requested with `device="{wanted}"`; ' if wanted else ""
    device = wanted or ("cuda" if machine.gpus else "cpu")
    if device == "cpu":
        memory = f"{bytes_text(machine.free_memory_bytes)} of free memory"
        here = f"{counted(machine.cores, 'core')}, {memory}"
        return device, f"{asked or 'PyTorch sees no GPU; '}{here}"
    if int(device.partition(":")[2] or 0) >= len(machine.gpus):
        seen = counted(len(machine.gpus), "GPU") if machine.gpus else "no GPU"
        raise InputError(
            f'PyTorch sees {seen}. Use `device="cpu"`, or check the '
            "driver and that PyTorch was built with CUDA.",
            setting="device",
            value=device,
        )
    gpu = machine.gpu(device)
    return device, f"{asked}{gpu.name}, {bytes_text(gpu.memory_bytes)}"


def _precision(request: PlanRequest, plan: HardwarePlan, machine: Machine) -> Choice:
    if request.precision is not None:
        return request.precision, "as requested"
    mixed = _mixed_precision(plan.device, machine)
    has_tf32 = plan.device != "cpu" and machine.gpu(plan.device).has_bf16
    plain: Precision = "tf32" if has_tf32 else "fp32"
    slow = plan.device == "cpu" and not machine.bf16_instructions
    if request.amp:
        but = "; this CPU has no instructions for it, so it will be slow" if slow else ""
        return mixed, f"requested with `amp=True`{but}"
    if request.amp is False:
        return plain, "requested with `amp=False`"
    if slow:
        return plain, "this CPU has no bf16 instructions"
    return plain, f"not measured: {mixed} is tried on the actual network when a run starts"


def _refuse_impossible(request: PlanRequest, plan: HardwarePlan, machine: Machine) -> None:
    """Raises InputError when this machine cannot do what was requested."""
    wanted, is_cpu = request.precision, plan.device == "cpu"
    why = ""
    if wanted in ("fp16", "tf32") and is_cpu:
        why = "it is only supported on GPUs. On the CPU, use bf16 (`amp=True`) or fp32"
    elif wanted == "bf16" and not is_cpu and not machine.gpu(plan.device).has_bf16:
        gpu = machine.gpu(plan.device).name
        why = f"{gpu} does not support it. Use fp16 (`amp=True` chooses it) or fp32"
    if why:
        raise InputError(f"{why} (`amp=False`).", setting="precision", value=wanted)
    if request.compile and machine.cannot_compile:
        raise InputError(
            f"`compile=True` was given, but {machine.cannot_compile}: install what is missing, or "
            "omit `compile=True`."
        )
    why = _why_no_graph(plan)
    if request.cuda_graph and why:
        raise InputError(f"`cuda_graph=True` was given, but {why}: omit `cuda_graph=True`.")
    if request.batch_size is not None and request.batch_size % plan.processes:
        share = max(1, request.batch_size // plan.processes) * plan.processes
        raise InputError(
            f"it is not divisible by {plan.processes} processes; use {share} or "
            f"{share + plan.processes}.",
            setting="batch_size",
            value=request.batch_size,
        )


def choose_loading(
    request: PlanRequest,
    plan: HardwarePlan,
    machine: Machine,
    *,
    read_seconds: float | None = None,
    step_seconds: float | None = None,
) -> dict[str, Choice]:
    """Choose the number of reading threads: enough to keep up with training if the times to read a
    batch and to train on it are known, otherwise as many as the cores allow."""
    is_cuda, count = plan.device != "cpu", _count_cores(plan, machine)
    most = max(1, min(count - _SPARED_CORES, _MAX_WORKERS)) if is_cuda else count
    cores, workers = counted(count, "core"), request.num_workers
    if workers is not None:
        when = "; batches are read on demand" if workers == 0 else ""
        why = f"requested with `num_workers={workers}`{when}"
    elif read_seconds is not None and step_seconds is not None:
        ratio = read_seconds / step_seconds
        wanted = math.ceil(_SLOWER_BESIDE_A_STEP * ratio) + 1 if is_cuda else math.ceil(ratio)
        workers, read = max(1, min(wanted, most)), step_text(read_seconds)
        why = f"a batch takes {read} to read and {step_text(step_seconds)} to train on; {cores}"
    elif is_cuda:
        workers, why = most, f"as many as {cores} allow"
    else:
        workers, why = 1, f"one worker prefetches; the training step itself needs the {cores}"
    none = "there are no workers"
    pinned = "copies to the GPU overlap with the step" if is_cuda else "there is no GPU to copy to"
    return {
        "num_workers": (workers, why),
        "persistent_workers": (workers > 0, "workers are kept between epochs" if workers else none),
        "prefetch_factor": (2, "batches prefetched by each worker" if workers else none),
        "pin_memory": (is_cuda, pinned),
        "non_blocking": (is_cuda, pinned),
    }


def _count_cores(plan: HardwarePlan, machine: Machine) -> int:
    """Those of one process."""
    return max(1, machine.cores // plan.processes)
