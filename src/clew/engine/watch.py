"""Checks the metrics that come back from the steps; when one is non-finite, finds the cause,
switches away from fp16, or ends the run with advice."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from clew.base.errors import TrainingError
from clew.base.progress import Note, Reporter
from clew.base.texts import list_some
from clew.engine.batches import count_samples, named_tensors, sample_names
from clew.engine.feed import Group, Position
from clew.engine.processes import gather
from clew.engine.seeding import same_random_numbers
from clew.engine.setup import Setup
from clew.engine.state import STEPS_A_READING, Figures, RunState

# The loss scaler skips a step now and then, more often at first, but never this many in a row.
_MAX_SKIPS = STEPS_A_READING


class Watch:
    """Checks the metrics of the steps. All processes see the same gradient norm, so they all reach
    the same decision."""

    def __init__(self, setup: Setup, reporter: Reporter) -> None:
        self._setup, self._reporter = setup, reporter
        self._skips = 0

    def look(self, readings: list[Figures], state: RunState, group: Group) -> None:
        """Adds the readings to the epoch's sums; `group` is that of the last of them.

        Raises TrainingError for non-finite values, unless fp16 is the cause; it is then switched
        off. Either way, the step was skipped on the device.
        """
        precision = self._setup.plan.precision
        for i, figures in enumerate(readings):
            begin = Position(epoch=state.epoch, samples=state.sums.samples)
            state.sums.add(figures)
            if figures.is_finite:
                self._skips = 0
            elif self._setup.plan.precision == precision:  # not switched off since these steps ran
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
        reason = (
            f"fp16 produced non-finite values in epoch {epoch + 1}, step {step + 1}, where fp32 "
            "does not"
        )
        self._setup.leave_fp16(reason)
        self._reporter(Note(f"{reason}: continuing in {self._setup.plan.precision}"))


def explain_not_finite(
    names: Sequence[str],
    wrong: Sequence[str],
    *,
    epoch: int,
    step: int,
    loss: float,
    norm: float,
    precision: str,
) -> TrainingError:
    """The error that ends a run: `names` of the step's samples, `wrong` parts of their data. Epoch
    and step count from 0."""
    what = f"the gradient's norm is {norm:g}" if math.isfinite(loss) else f"the loss is {loss:g}"
    if wrong:
        cause = (
            f"The data itself contains NaN or infinity: {list_some(wrong)}. Exclude these samples."
        )
    else:
        mixed = precision in ("bf16", "fp16")
        amp = f", or `amp=False` (it ran in {precision})" if mixed else ""
        cause = f"The data is finite, so training diverged: try a lower `lr`{amp}."
    shown = list_some(names) or "the batch has no sample names"
    return TrainingError(
        f"{what} in epoch {epoch + 1}, step {step + 1} (samples: {shown}). {cause} "
        f"That step was not applied; the last checkpoint is from before it."
    )


def find_wrong_inputs(batch: Any) -> list[str]:
    """Which tensors contain NaN or infinity, and in which samples: `"sequence" of q17`."""
    names = sample_names(batch)
    found = []
    for tensor_name, tensor in named_tensors(batch):
        if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
            continue
        wrong = tensor.isfinite().logical_not().reshape(len(tensor), -1).any(dim=1)
        whose = _samples_of(batch, tensor_name, wrong)
        shown = [names[i] if i < len(names) else f"sample {i}" for i in whose]
        found.append(f'"{tensor_name}" of {list_some(shown)}' if shown else f'"{tensor_name}"')
    return found


def _samples_of(batch: Any, name: str, wrong: Bool[Tensor, " rows"]) -> list[int]:
    """The samples that the non-finite rows belong to, if the batch identifies them."""
    samples = count_samples(batch)
    rows = wrong.nonzero()[:, 0]
    if len(wrong) == samples:
        return rows.tolist()
    graphs: Int64[Tensor, " nodes"] | None = getattr(batch, "batch", None)
    if graphs is None:
        return []
    if name.startswith("edge"):
        rows = batch["edge_index"][0, rows]
    graphs_a_sample = max(1, int(batch.num_graphs) // samples)
    return (graphs[rows] // graphs_a_sample).unique().tolist()


@torch.no_grad()
def is_finite_in_fp32(model: nn.Module, batches: Sequence[Any]) -> bool:
    """Whether the forward pass gives finite values without autocast; leaves the model unchanged."""
    device = next(model.parameters()).device
    before = [buffer.clone() for buffer in model.buffers()]
    with same_random_numbers(device), torch.autocast(device.type, enabled=False):
        losses = [model.training_step(batch).loss for batch in batches]  # type: ignore[operator]
    for buffer, value in zip(model.buffers(), before, strict=True):
        buffer.copy_(value)
    return all(bool(loss.isfinite()) for loss in losses)


def has_finite_buffers(model: nn.Module) -> bool:
    """Whether all buffers are finite. A running mean that has become infinite stays infinite."""
    return all(bool(b.isfinite().all()) for b in model.buffers() if b.is_floating_point())
