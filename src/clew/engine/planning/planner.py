"""Makes the hardware plan of a run: what was requested, what is possible, what is fastest."""

import torch
from torch import nn

from clew.engine.config import PlanRequest, TrainConfig
from clew.engine.planning.calibrate import Training, calibrate
from clew.engine.planning.choices import choose_plainly
from clew.engine.planning.hardware import Machine, look_at_machine
from clew.engine.planning.plan import HardwarePlan
from clew.engine.processes import count_processes, share_first, start_fabric
from clew.engine.protocols import Batches, OpenBatches


def plan_hardware(
    request: PlanRequest | None = None,
    *,
    model: nn.Module | None = None,
    open_batches: OpenBatches | Batches | None = None,
    samples: int | None = None,
    epochs: int | None = None,
    config: TrainConfig | None = None,
    processes: int = 1,
    device: torch.device | None = None,
    machine: Machine | None = None,
) -> HardwarePlan:
    """Choose how a run uses the hardware.

    With `model` and `open_batches`, everything that the request leaves open is measured. Without
    them, the plan is the plain one and says what would be measured.

    Args:
        request: Choices to fix.
        model: The model to measure, with a `training_step`.
        open_batches: Opens training batches of a given size, or a ready-made loader, whose batch
            size is kept.
        samples: Samples per epoch. [default: taken from the batches]
        epochs: Overrides `config.epochs`.
        config: Hyperparameters of the run.
        processes: Number of processes that train together; all get the first one's plan.
        device: The device of this process.
        machine: The machine to plan for. [default: this one]

    Returns:
        The plan, with a reason for every choice.

    Raises:
        InputError: The machine cannot do what is requested.
    """
    request = request or PlanRequest()
    plan, left = choose_plainly(request, machine or look_at_machine(), processes)
    if model is None or open_batches is None or not request.calibrate:
        return plan
    training = Training(
        model=model,
        batches=open_batches,
        epochs=(config or TrainConfig()).epochs if epochs is None else epochs,
        device=device or torch.device(plan.device),
        samples=samples,
    )
    return _agree(calibrate(plan, left, training), processes)


def _agree(plan: HardwarePlan, processes: int) -> HardwarePlan:
    """The first process's plan: each process measured for itself, but all must use the same one."""
    return plan if processes == 1 else share_first(plan)


def connect(request: PlanRequest) -> str:
    """Connects the processes that torchrun started; returns the device that this one trains on.
    Raises InputError for a request that the machine cannot fulfill."""
    plan, _ = choose_plainly(request, look_at_machine(), count_processes())
    if plan.processes == 1:
        return plan.device
    return str(start_fabric(plan.device).device)
