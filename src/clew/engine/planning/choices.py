"""What follows from the request and the machine alone: the plain plan, what is impossible here, and
what calibration has to measure. Nothing after this looks at the request again."""

from dataclasses import dataclass, replace
from itertools import product

import torch

from clew.base.errors import InputError
from clew.base.texts import bytes_text, counted
from clew.engine.config import PlanRequest, Precision
from clew.engine.planning.hardware import Machine
from clew.engine.planning.loading import Loading
from clew.engine.planning.plan import Choice, HardwarePlan, Way

DEFAULT_BATCH = 32
_GPU_SHARE, _RAM_SHARE = 0.6, 0.5


@dataclass(frozen=True, kw_only=True)
class OpenChoices:
    """What the request leaves open on this machine.

    `ways` are the variants of a step, starting with the plain one, which the plan uses so far.
    torch.compile is not among them: trying it with each would take too long. `batch_size` is the
    requested one, or None; `threads`: whether their number may change; `memory_bytes` is the memory
    that a step may use.
    """

    ways: tuple[Way, ...]
    layout: bool
    compile: bool
    batch_size: int | None
    threads: bool
    memory_bytes: int
    loading: Loading


def choose_plainly(
    request: PlanRequest, machine: Machine, processes: int
) -> tuple[HardwarePlan, OpenChoices]:
    """An unmeasured plan, and what could be measured; raises InputError for what is impossible
    here."""
    together = "as many as torchrun started" if processes > 1 else "not under torchrun"
    plan = HardwarePlan().change_all(
        {
            "device": _choose_device(request.device, machine),
            "processes": (processes, together),
            "gradient_checkpointing": _checkpointing(request.gradient_checkpointing),
        }
    )
    _refuse_impossible(request, plan, machine)
    is_cuda = plan.device != "cpu"
    cores = max(1, machine.cores // processes)
    loading = Loading(asked=request.num_workers, cores=cores, is_cuda=is_cuda)
    plan = plan.change_all(
        {
            "precision": _precision(request, plan, machine),
            "compile": _compile(request.compile, machine),
            "cuda_graph": _cuda_graph(request.cuda_graph, plan),
            "channels_last": _channels_last(request.channels_last),
            "batch_size": _batch_size(request.batch_size, processes),
            "grad_accum": _grad_accum(request.grad_accum),
            "max_cache_batches": _max_cache(request.max_cache_batches),
            "threads": _threads(request.threads, cores),
            **loading.choose(),
        }
    )
    plan = replace(plan, reasons={**plan.reasons, **request.reasons})
    return plan, OpenChoices(
        ways=_open_ways(request, plan, machine),
        layout=request.channels_last is None,
        compile=request.compile is None and not machine.cannot_compile,
        batch_size=request.batch_size,
        threads=request.threads is None and not is_cuda,
        memory_bytes=_memory_limit(plan, machine),
        loading=loading,
    )


def _open_ways(request: PlanRequest, plan: HardwarePlan, machine: Machine) -> tuple[Way, ...]:
    layouts = (False, True) if request.channels_last is None else (plan.channels_last,)
    graphs_open = request.cuda_graph is None and _can_graph(plan)
    launches = (False, True) if graphs_open else (plan.cuda_graph,)
    precisions = _open_precisions(request, plan, machine)
    return tuple(
        Way(
            precision=precision,
            channels_last=channels_last,
            cuda_graph=cuda_graph,
            gradient_checkpointing=plan.gradient_checkpointing,
        )
        for precision, channels_last, cuda_graph in product(precisions, layouts, launches)
    )


def _open_precisions(
    request: PlanRequest, plan: HardwarePlan, machine: Machine
) -> tuple[Precision, ...]:
    """The plan's own precision, and the 16-bit format that might beat it."""
    if request.precision is not None or request.amp is not None:
        return (plan.precision,)
    if plan.device == "cpu":
        return ("fp32", "bf16") if machine.bf16_instructions else ("fp32",)
    return (plan.precision, _mixed_precision(plan.device, machine))


def _mixed_precision(device: str, machine: Machine) -> Precision:
    """The device's 16-bit format. fp16 requires loss scaling: only for GPUs that lack bf16."""
    return "bf16" if device == "cpu" or machine.gpu(device).has_bf16 else "fp16"


def _can_graph(plan: HardwarePlan) -> bool:
    """Whether the step can be a CUDA graph, which can contain neither communication between
    processes nor a recomputed forward pass."""
    return plan.device != "cpu" and plan.processes == 1 and not plan.gradient_checkpointing


def _memory_limit(plan: HardwarePlan, machine: Machine) -> int:
    if plan.device == "cpu":
        return round(_RAM_SHARE * machine.free_memory_bytes / plan.processes)
    gpu = machine.gpu(plan.device)
    return round(min(_GPU_SHARE * gpu.memory_bytes, gpu.free_bytes))


def _choose_device(wanted: str | None, machine: Machine) -> Choice:
    """The device and why; raises InputError when the requested one is not available."""
    asked = f'requested with `device="{wanted}"`; ' if wanted else ""
    device = wanted or ("cuda" if machine.gpus else "cpu")
    if device != "cpu":
        _refuse_missing_gpu(device, machine)
        gpu = machine.gpu(device)
        return device, f"{asked}{gpu.name}, {bytes_text(gpu.memory_bytes)}"
    memory = f"{bytes_text(machine.free_memory_bytes)} of free memory"
    here = f"{counted(machine.cores, 'core')}, {memory}"
    return device, f"{asked or 'PyTorch sees no GPU; '}{here}"


def _checkpointing(asked: bool) -> Choice:
    if asked:
        return True, "requested with `gradient_checkpointing=True`"
    return False, "not requested; `gradient_checkpointing=True` trades time for memory"


def _precision(request: PlanRequest, plan: HardwarePlan, machine: Machine) -> Choice:
    if request.precision is not None:
        return request.precision, "as requested"
    mixed = _mixed_precision(plan.device, machine)
    plain = _full_precision(plan, machine)
    if request.amp:
        slow = plan.device == "cpu" and not machine.bf16_instructions
        but = "; this CPU has no instructions for it, so it will be slow" if slow else ""
        return mixed, f"requested with `amp=True`{but}"
    if request.amp is False:
        return plain, "requested with `amp=False`"
    if plan.device == "cpu" and not machine.bf16_instructions:
        return plain, "this CPU has no bf16 instructions"
    return plain, f"not measured: {mixed} is tried on the actual network when a run starts"


def _full_precision(plan: HardwarePlan, machine: Machine) -> Precision:
    """tf32 on a GPU that supports it, otherwise fp32."""
    return "tf32" if plan.device != "cpu" and machine.gpu(plan.device).has_bf16 else "fp32"


def _compile(asked: bool | None, machine: Machine) -> Choice:
    if asked is not None:
        return asked, f"requested with `compile={asked}`"
    if machine.cannot_compile:
        return False, machine.cannot_compile
    return False, "not measured: tried on the actual network if the run is long enough"


def _cuda_graph(asked: bool | None, plan: HardwarePlan) -> Choice:
    if asked is not None:
        return asked, f"requested with `cuda_graph={asked}`"
    if plan.device == "cpu":
        return False, "only available on a GPU"
    if _can_graph(plan):
        return False, "not measured: tried on the actual network when a run starts"
    if plan.processes > 1:
        return (
            False,
            f"a CUDA graph cannot capture the communication between {plan.processes} processes",
        )
    return False, "a CUDA graph cannot capture gradient checkpointing"


def _channels_last(asked: bool | None) -> Choice:
    if asked is not None:
        return asked, "as requested" if asked else "requested with `channels_last=False`"
    return False, "not measured: tried on networks with 2-D convolutions when a run starts"


def _batch_size(asked: int | None, processes: int) -> Choice:
    if asked is not None:
        return asked, f"requested with `batch_size={asked}`"
    size = -(-DEFAULT_BATCH // processes) * processes
    return (
        size,
        "not measured: the fastest batch size is found on the actual network when a run starts",
    )


def _grad_accum(asked: int | None) -> Choice:
    if asked is not None:
        return asked, f"requested with `grad_accum={asked}`"
    return 1, "every batch is one optimizer step; `grad_accum=N` accumulates N of them"


def _max_cache(count: int | None) -> Choice:
    if count is not None:
        return count, f"requested with `max_cache_batches={count}`"
    return (
        None,
        "shards are memory-mapped: the operating system caches as much of them as fits in memory",
    )


def _threads(asked: int | None, cores: int) -> Choice:
    if asked is not None:
        return asked, f"requested with `threads={asked}`"
    most = torch.get_num_threads()
    return (cores, "one per core") if most >= cores else (most, "as many as PyTorch was given")


def _refuse_missing_gpu(device: str, machine: Machine) -> None:
    kind, colon, number = device.partition(":")
    if kind != "cuda" or (colon and not number.isdigit()):
        raise InputError(
            "choose from: cpu, cuda, or cuda:N for a specific GPU.", setting="device", value=device
        )
    if int(number or 0) >= len(machine.gpus):
        seen = counted(len(machine.gpus), "GPU")
        raise InputError(
            f'PyTorch sees {seen}. Use `device="cpu"`, or check the driver and that PyTorch was '
            "built with CUDA.",
            setting="device",
            value=device,
        )


def _refuse_impossible(request: PlanRequest, plan: HardwarePlan, machine: Machine) -> None:
    """Raises InputError when this machine cannot do what was requested."""
    _refuse_precision(request, plan, machine)
    if request.compile and machine.cannot_compile:
        raise InputError(
            f"`compile=True` was given, but {machine.cannot_compile}: install what is missing, or "
            "omit `compile=True`."
        )
    if request.cuda_graph:
        _refuse_graph(request, plan)
    if request.batch_size is not None and request.batch_size % plan.processes:
        share = max(1, request.batch_size // plan.processes) * plan.processes
        raise InputError(
            f"it is not divisible by {plan.processes} processes; use {share} or "
            f"{share + plan.processes}.",
            setting="batch_size",
            value=request.batch_size,
        )


def _refuse_precision(request: PlanRequest, plan: HardwarePlan, machine: Machine) -> None:
    if request.precision in ("fp16", "tf32") and plan.device == "cpu":
        raise InputError(
            "it is only supported on GPUs. On the CPU, use bf16 (`amp=True`) or fp32 "
            "(`amp=False`).",
            setting="precision",
            value=request.precision,
        )
    if request.precision != "bf16" or plan.device == "cpu":
        return
    gpu = machine.gpu(plan.device)
    if not gpu.has_bf16:
        raise InputError(
            f"{gpu.name} does not support it. Use fp16 (`amp=True` chooses it) or fp32 "
            "(`amp=False`).",
            setting="precision",
            value="bf16",
        )


def _refuse_graph(request: PlanRequest, plan: HardwarePlan) -> None:
    problem = ""
    if plan.device == "cpu":
        problem = "the run is on the CPU"
    elif plan.processes > 1:
        problem = (
            f"{plan.processes} processes train together, and a CUDA graph cannot capture their "
            "communication"
        )
    elif request.gradient_checkpointing:
        problem = "`gradient_checkpointing=True` was given too, which a CUDA graph cannot capture"
    if problem:
        raise InputError(f"`cuda_graph=True` was given, but {problem}: omit `cuda_graph=True`.")
