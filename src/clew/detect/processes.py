"""Work on files that only the first of several processes may do, while the others wait."""

from collections.abc import Callable

import torch.distributed as dist

from clew.engine import PlanRequest, plan_hardware
from clew.engine.processes import count_processes, is_first_process, start_fabric
from clew.errors import ClewError


def connect(request: PlanRequest) -> None:
    """Let the processes that torchrun started find each other; raises InputError for a request
    that the machine cannot fulfil."""
    plan = plan_hardware(request, processes=count_processes())
    if plan.processes > 1:
        start_fabric(plan.device)


def first_does(work: Callable[[], object]) -> None:
    """The first process does the work; what it raises, all of them raise."""
    failed: list[ClewError | None] = [None]
    if is_first_process():
        try:
            work()
        except ClewError as error:
            failed = [error]
    if count_processes() > 1:
        dist.broadcast_object_list(failed, src=0)
    if failed[0] is not None:
        raise failed[0]
