"""Requests that a machine cannot fulfil, each with what to do instead."""

from clew.engine.config import PlanRequest
from clew.engine.planning.hardware import Machine
from clew.engine.planning.plan import HardwarePlan
from clew.errors import InputError
from clew.wording import counted


def refuse_missing_gpu(device: str, machine: Machine) -> None:
    kind, colon, number = device.partition(":")
    if kind != "cuda" or (colon and not number.isdigit()):
        raise InputError(f'device is "{device}": give cpu, cuda, or cuda:0 for a certain GPU.')
    if int(number or 0) >= len(machine.gpus):
        seen = counted(len(machine.gpus), "GPU")
        raise InputError(
            f'device is "{device}", but PyTorch sees {seen} here: give --device cpu, or check '
            f"the driver, and that this PyTorch is built for CUDA."
        )


def refuse_impossible(request: PlanRequest, plan: HardwarePlan, machine: Machine) -> None:
    """Raises InputError when this machine cannot do what was asked for."""
    _refuse_precision(request, plan, machine)
    if request.compile and machine.cannot_compile:
        raise InputError(
            f"--use-compile was given, but {machine.cannot_compile}: install it, or leave "
            f"--use-compile out."
        )
    if request.cuda_graph:
        _refuse_graph(request, plan)
    if request.batch_size is not None and request.batch_size % plan.processes:
        share = max(1, request.batch_size // plan.processes) * plan.processes
        raise InputError(
            f"--batch-size {request.batch_size} cannot be shared evenly by {plan.processes} "
            f"processes: give {share} or {share + plan.processes}."
        )


def _refuse_precision(request: PlanRequest, plan: HardwarePlan, machine: Machine) -> None:
    if request.precision in ("fp16", "tf32") and plan.device == "cpu":
        raise InputError(
            f"precision is {request.precision}, which is a GPU's: on the CPU give bf16 (--use-amp) "
            f"or fp32 (--no-amp)."
        )
    if request.precision != "bf16" or plan.device == "cpu":
        return
    gpu = machine.gpu(plan.device)
    if not gpu.has_bf16:
        raise InputError(
            f"precision is bf16, which {gpu.name} does not have: give fp16 (--use-amp chooses it) "
            f"or fp32 (--no-amp)."
        )


def _refuse_graph(request: PlanRequest, plan: HardwarePlan) -> None:
    problem = ""
    if plan.device == "cpu":
        problem = "the run is on the CPU"
    elif plan.processes > 1:
        problem = f"{plan.processes} processes train together, whose messages no graph holds"
    elif request.gradient_checkpointing:
        problem = "--use-gradient-checkpointing was given too, which no graph holds"
    if problem:
        raise InputError(f"--use-cuda-graph was given, but {problem}: leave --use-cuda-graph out.")
