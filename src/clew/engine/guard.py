"""Values that are no numbers: where they come from, and what to tell the user."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from clew.engine.batches import count_samples, named_tensors, sample_names
from clew.engine.seeding import same_random_numbers
from clew.errors import TrainingError

# As many are named one by one.
_MAX_NAMED = 8


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
    """The error that ends a run: `names` of the step's samples, what of their data is `wrong`.
    Epoch and step count from 0."""
    what = f"the gradient's norm is {norm:g}" if math.isfinite(loss) else f"the loss is {loss:g}"
    if wrong:
        cause = f"The data itself holds inf or NaN: {list_some(wrong)}. Leave these samples out."
    else:
        mixed = precision in ("bf16", "fp16")
        amp = f", or `amp=False` (it ran in {precision})" if mixed else ""
        cause = f"The data is finite, so training diverged: try a lower `lr`{amp}."
    return TrainingError(
        f"{what} in epoch {epoch + 1}, step {step + 1} (samples: {list_some(names)}). {cause} "
        f"That step was not applied; the last checkpoint is from before it."
    )


def find_wrong_inputs(batch: Any) -> list[str]:
    """Which tensors hold inf or NaN, and of which samples: `"sequence" of q17`."""
    names = sample_names(batch)
    found = []
    for tensor_name, tensor in named_tensors(batch):
        if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
            continue
        wrong = tensor.isfinite().logical_not().reshape(len(tensor), -1).any(dim=1)
        whose = _samples_of(batch, tensor_name, wrong)
        told = [names[i] if i < len(names) else f"sample {i}" for i in whose]
        found.append(f'"{tensor_name}" of {list_some(told)}' if told else f'"{tensor_name}"')
    return found


def _samples_of(batch: Any, name: str, wrong: Bool[Tensor, " rows"]) -> list[int]:
    """The samples that the wrong rows belong to, as far as the batch tells."""
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
    """Whether the forward pass gives a number without autocast; leaves the model as it was."""
    device = next(model.parameters()).device
    before = [buffer.clone() for buffer in model.buffers()]
    with same_random_numbers(device), torch.autocast(device.type, enabled=False):
        losses = [model.training_step(batch).loss for batch in batches]  # type: ignore[operator]
    for buffer, value in zip(model.buffers(), before, strict=True):
        buffer.copy_(value)
    return all(bool(loss.isfinite()) for loss in losses)


def has_finite_buffers(model: nn.Module) -> bool:
    """Running means that saw inf keep it for good."""
    return all(bool(b.isfinite().all()) for b in model.buffers() if b.is_floating_point())


def list_some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    more = len(names) - _MAX_NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown or "not told by the batch"
