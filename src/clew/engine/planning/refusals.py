"""Requests that a machine cannot fulfil, each with what to do instead."""

from clew.engine.config import PlanRequest
from clew.engine.planning.hardware import Machine
from clew.engine.planning.plan import HardwarePlan
from clew.errors import InputError
from clew.wording import counted


def refuse_missing_gpu(device: str, machine: Machine) -> None:
    kind, colon, number = device.partition(":")
    if kind != "cuda" or (colon and not number.isdigit()):
        raise InputError(
            "give cpu, cuda, or cuda:0 for a certain GPU.", setting="device", value=device
        )
    if int(number or 0) >= len(machine.gpus):
        seen = counted(len(machine.gpus), "GPU")
        raise InputError(
            f'PyTorch sees {seen} here. Give `device="cpu"`, or check the driver, and that this '
            f"PyTorch is built for CUDA.",
            setting="device",
            value=device,
        )


def refuse_impossible(request: PlanRequest, plan: HardwarePlan, machine: Machine) -> None:
    """Raises InputError when this machine cannot do what was asked for."""
    _refuse_precision(request, plan, machine)
    if request.compile and machine.cannot_compile:
        raise InputError(
            f"`compile=True` was given, but {machine.cannot_compile}: install it, or omit "
            f"`compile=True`."
        )
    if request.cuda_graph:
        _refuse_graph(request, plan)
    if request.batch_size is not None and request.batch_size % plan.processes:
        share = max(1, request.batch_size // plan.processes) * plan.processes
        raise InputError(
            f"{plan.processes} processes cannot share that evenly; give {share} or "
            f"{share + plan.processes}.",
            setting="batch_size",
            value=request.batch_size,
        )


def _refuse_precision(request: PlanRequest, plan: HardwarePlan, machine: Machine) -> None:
    if request.precision in ("fp16", "tf32") and plan.device == "cpu":
        raise InputError(
            "only a GPU has it. On the CPU give bf16 (`amp=True`) or fp32 (`amp=False`).",
            setting="precision",
            value=request.precision,
        )
    if request.precision != "bf16" or plan.device == "cpu":
        return
    gpu = machine.gpu(plan.device)
    if not gpu.has_bf16:
        raise InputError(
            f"{gpu.name} does not have it. Give fp16 (`amp=True` chooses it) or fp32 "
            f"(`amp=False`).",
            setting="precision",
            value="bf16",
        )


def _refuse_graph(request: PlanRequest, plan: HardwarePlan) -> None:
    problem = ""
    if plan.device == "cpu":
        problem = "the run is on the CPU"
    elif plan.processes > 1:
        problem = f"{plan.processes} processes train together, whose messages no graph holds"
    elif request.gradient_checkpointing:
        problem = "`gradient_checkpointing=True` was given too, which no graph holds"
    if problem:
        raise InputError(f"`cuda_graph=True` was given, but {problem}: omit `cuda_graph=True`.")
