"""What a run does when a step does not fit in memory: smaller parts of the same batch."""

from clew.engine.planning.plan import HardwarePlan
from clew.errors import TrainingError


def shrink_micro_batch(plan: HardwarePlan, *, is_ready_made: bool, step: int) -> HardwarePlan:
    """The plan with at most half the micro-batch and the same effective batch, so that results
    stay; raises TrainingError when that cannot be."""
    where = f"step {step + 1} ran out of memory with {plan.batch_size} samples at a time"
    if is_ready_made:
        raise TrainingError(
            f"{where}, and the loader that was given has a batch size of its own: give a smaller "
            f"batch_size and a larger grad_accum, or a function that opens it."
        )
    smaller = _next_divisor(plan.effective_batch, plan.batch_size, plan.processes)
    if smaller is None:
        raise TrainingError(
            f"{where}: a single sample does not fit. Try `gradient_checkpointing=True`, a smaller "
            f"network, or freeing memory that other programs use."
        )
    accum = plan.effective_batch // smaller
    if plan.processes > 1:
        raise TrainingError(
            f"{where}, on one of {plan.processes} processes: start it again with "
            f"`batch_size={smaller}` and `grad_accum={accum}`; it resumes from the last checkpoint."
        )
    reason = f"{where}; {accum} x {smaller} samples make the same step of {plan.effective_batch}"
    return plan.change("batch_size", smaller, reason).change("grad_accum", accum, reason)


def _next_divisor(whole: int, part: int, shares: int) -> int | None:
    """The largest divisor of `whole` that is at most half of `part` and can be shared evenly."""
    sizes = range(part // 2 // shares * shares, 0, -shares)
    return next((size for size in sizes if whole % size == 0), None)
