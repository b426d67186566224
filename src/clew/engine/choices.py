"""What follows from the request and the machine alone: the plain plan, what is impossible here, and
what calibration has to measure. Nothing after this looks at the request again."""

import math
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, kw_only=True)
class OpenChoices:
    """What the request leaves open on this machine.

    `ways` are the variants of a step, starting with the plain one, which the plan uses so far.
    torch.compile is not among them: trying it with each would take too long. `batch_size` is the
    requested one, or None; `threads`: whether their number may change; `memory_bytes` is the memory
    that a step may use.
    """

    ways: tuple[StepVariant, ...]
    layout: bool
    compile: bool
    batch_size: int | None
    threads: bool
    memory_bytes: int
    loading: "Loading"


def choose_plainly(
    request: PlanRequest, machine: Machine, processes: int
) -> tuple[HardwarePlan, OpenChoices]:
    """An unmeasured plan, and what could be measured; raises InputError for what is impossible
    here."""
    together = "as many as torchrun started" if processes > 1 else "not under torchrun"
    checkpointing = "not requested; `gradient_checkpointing=True` trades time for memory"
    plan = HardwarePlan().change_all(
        {
            "device": _choose_device(request.device, machine),
            "processes": (processes, together),
            "gradient_checkpointing": _asked(request, "gradient_checkpointing")
            if request.gradient_checkpointing
            else (False, checkpointing),
        }
    )
    _refuse_impossible(request, plan, machine)
    is_cuda = plan.device != "cpu"
    cores = max(1, machine.cores // processes)
    loading = Loading(asked=request.num_workers, cores=cores, is_cuda=is_cuda)
    plain = _plain_choices(plan, machine, cores)
    fixed = {name: _asked(request, name) for name in plain if getattr(request, name) is not None}
    precision = _precision(request, plan, machine)
    plan = plan.change_all({"precision": precision, **plain, **fixed, **loading.choose()})
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


def _asked(request: PlanRequest, name: str) -> Choice:
    value = getattr(request, name)
    return value, f"requested with `{name}={value}`"


def _plain_choices(plan: HardwarePlan, machine: Machine, cores: int) -> dict[str, Choice]:
    """What is chosen where nothing is requested, before anything is measured."""
    most = torch.get_num_threads()
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


def _open_ways(
    request: PlanRequest, plan: HardwarePlan, machine: Machine
) -> tuple[StepVariant, ...]:
    layouts = (False, True) if request.channels_last is None else (plan.channels_last,)
    graphs_open = request.cuda_graph is None and not _why_no_graph(plan)
    launches = (False, True) if graphs_open else (plan.cuda_graph,)
    precisions = _open_precisions(request, plan, machine)
    return tuple(
        StepVariant(
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


def _why_no_graph(plan: HardwarePlan) -> str:
    """Why the step cannot be a CUDA graph, "" if it can."""
    if plan.device == "cpu":
        return "it is only available on a GPU"
    if plan.processes > 1:
        return f"a CUDA graph cannot capture the communication between {plan.processes} processes"
    if plan.gradient_checkpointing:
        return "a CUDA graph cannot capture gradient checkpointing"
    return ""


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


def _refuse_precision(request: PlanRequest, plan: HardwarePlan, machine: Machine) -> None:
    why = ""
    if request.precision in ("fp16", "tf32") and plan.device == "cpu":
        why = "it is only supported on GPUs. On the CPU, use bf16 (`amp=True`) or fp32"
    elif request.precision == "bf16" and plan.device != "cpu":
        gpu = machine.gpu(plan.device)
        if not gpu.has_bf16:
            why = f"{gpu.name} does not support it. Use fp16 (`amp=True` chooses it) or fp32"
    if why:
        raise InputError(f"{why} (`amp=False`).", setting="precision", value=request.precision)


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Chooses how batches are loaded. `asked` is the requested number of threads; `cores` are those
    of this process."""

    asked: int | None
    cores: int
    is_cuda: bool

    def choose(
        self, *, read_seconds: float | None = None, step_seconds: float | None = None
    ) -> dict[str, Choice]:
        """Choose the number of threads: enough to keep up with training if the times to read a
        batch and to train on it are known, otherwise as many as the cores allow."""
        workers, why = self._workers(read_seconds, step_seconds)
        kept, ahead = "workers are kept between epochs", "batches prefetched by each worker"
        none = "there are no workers"
        copied = "copies to the GPU overlap with the step"
        pinned = copied if self.is_cuda else "there is no GPU to copy to"
        return {
            "num_workers": (workers, why),
            "persistent_workers": (workers > 0, kept if workers else none),
            "prefetch_factor": (2, ahead if workers else none),
            "pin_memory": (self.is_cuda, pinned),
            "non_blocking": (self.is_cuda, pinned),
        }

    def _workers(self, read_seconds: float | None, step_seconds: float | None) -> tuple[int, str]:
        if self.asked is not None:
            when = "; batches are read on demand" if self.asked == 0 else ""
            return self.asked, f"requested with `num_workers={self.asked}`{when}"
        cores = counted(self.cores, "core")
        if read_seconds is None or step_seconds is None:
            if not self.is_cuda:
                return 1, f"one worker prefetches; the training step itself needs the {cores}"
            return self._most, f"as many as {cores} allow"
        ratio = read_seconds / step_seconds
        wanted = math.ceil(_SLOWER_BESIDE_A_STEP * ratio) + 1 if self.is_cuda else math.ceil(ratio)
        read, step = step_text(read_seconds), step_text(step_seconds)
        took = f"a batch takes {read} to read and {step} to train on"
        return max(1, min(wanted, self._most)), f"{took}; {cores}"

    @property
    def _most(self) -> int:
        return max(1, min(self.cores - _SPARED_CORES, _MAX_WORKERS)) if self.is_cuda else self.cores
