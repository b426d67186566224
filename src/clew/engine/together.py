"""Work that only the first of several processes does, on files above all, while the others wait."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from clew.engine.config import PlanRequest
from clew.engine.planning.planner import plan_hardware
from clew.engine.processes import count_processes, is_first_process, start_fabric
from clew.errors import ClewError

Value = TypeVar("Value")


def connect(request: PlanRequest) -> str:
    """Let the processes that torchrun started find each other; gives the device that this one
    trains on. Raises InputError for a request that the machine cannot fulfil."""
    plan = plan_hardware(request, processes=count_processes())
    if plan.processes == 1:
        return plan.device
    return str(start_fabric(plan.device).device)


def first_does(work: Callable[[], Value]) -> Value:
    """The first process does the work; what it gives, all of them get, and what it raises, all
    of them raise."""
    done: list[tuple[Value | None, ClewError | None]] = [(None, None)]
    if is_first_process():
        try:
            done = [(work(), None)]
        except ClewError as error:
            done = [(None, error)]
    if count_processes() > 1:
        dist.broadcast_object_list(done, src=0)
    value, failed = done[0]
    if failed is not None:
        raise failed
    return value  # type: ignore[return-value]
