"""Looks at the figures that come back from the steps, and acts when one is no number."""

from clew.engine.batches import sample_names
from clew.engine.feed import Group, Position
from clew.engine.figures import STEPS_A_READING, Figures
from clew.engine.guard import (
    explain_not_finite,
    find_wrong_inputs,
    has_finite_buffers,
    is_finite_in_fp32,
)
from clew.engine.processes import gather
from clew.engine.setup import Setup
from clew.engine.state import RunState
from clew.progress import Note, Reporter

# The loss scaler skips a step now and then, more often at first; never so many in a row.
_MAX_SKIPS = STEPS_A_READING


class Watch:
    """All processes see the same norm, so all of them come to the same end."""

    def __init__(self, setup: Setup, reporter: Reporter) -> None:
        self._setup, self._reporter = setup, reporter
        self._skips = 0

    def look(self, readings: list[Figures], state: RunState, group: Group) -> None:
        """Add the readings to the epoch's sums; `group` is that of the last of them.

        Raises TrainingError for values that are no numbers, unless fp16 is to blame: that is
        left. The step was skipped on the device in any case.
        """
        precision = self._setup.plan.precision
        for i, figures in enumerate(readings):
            begin = Position(epoch=state.epoch, samples=state.sums.samples)
            state.sums.add(figures)
            if figures.is_finite:
                self._skips = 0
            elif self._setup.plan.precision == precision:  # not left since these steps ran
                step = state.step - len(readings) + i
                self._examine(figures, step, begin, group if i == len(readings) - 1 else None)

    def _examine(self, figures: Figures, step: int, begin: Position, group: Group | None) -> None:
        fabric, plan = self._setup.fabric, self._setup.plan
        is_fp16 = plan.precision == "fp16"
        self._skips += 1
        if is_fp16 and self._skips < _MAX_SKIPS and all(gather(fabric, figures.has_finite_loss)):
            return
        batches = group.read if group is not None else self._setup.read_again(begin)
        if is_fp16 and self._is_fp16_to_blame(batches):
            self._leave_fp16(begin.epoch, step)
            return
        names = [name for batch in batches for name in sample_names(batch)]
        wrong = [sentence for batch in batches for sentence in find_wrong_inputs(batch)]
        parts = gather(fabric, (names, wrong))
        raise explain_not_finite(
            [name for part, _ in parts for name in part],
            [sentence for _, part in parts for sentence in part],
            epoch=begin.epoch,
            step=step,
            loss=figures.means["loss"],
            norm=figures.gradient_norm,
            precision=plan.precision,
        )

    def _is_fp16_to_blame(self, batches: list) -> bool:
        model = self._setup.model
        finite = is_finite_in_fp32(model, self._setup.on_device(batches))
        return all(gather(self._setup.fabric, finite and has_finite_buffers(model)))

    def _leave_fp16(self, epoch: int, step: int) -> None:
        self._skips = 0
        reason = f"fp16 gave no numbers in epoch {epoch + 1}, step {step + 1}, where fp32 does"
        self._setup.leave_fp16(reason)
        self._reporter(Note(f"{reason}: going on in {self._setup.plan.precision}"))
