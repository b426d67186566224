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
    if plan.processes > 1:
        raise TrainingError(
            f"{where}, on one of {plan.processes} processes: give the same command with "
            f"--batch-size {plan.batch_size // 2} --grad-accum {plan.grad_accum * 2}; it goes on "
            f"from the last checkpoint."
        )
    smaller = _next_divisor(plan.effective_batch, plan.batch_size)
    if smaller is None:
        raise TrainingError(
            f"{where}: a single sample does not fit. Try --use-gradient-checkpointing or a smaller "
            f"network, or free memory that other programs use."
        )
    accum = plan.effective_batch // smaller
    reason = f"{where}; {accum} x {smaller} samples make the same step of {plan.effective_batch}"
    return plan.change("batch_size", smaller, reason).change("grad_accum", accum, reason)


def _next_divisor(whole: int, part: int) -> int | None:
    """The largest divisor of `whole` that is at most half of `part`."""
    return next((size for size in range(part // 2, 0, -1) if whole % size == 0), None)
