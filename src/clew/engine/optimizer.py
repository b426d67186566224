"""AdamW for a model, its state by parameter name, and its learning rate: One-Cycle as a closed form
of the step, so that the schedule has no state to save."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from clew.base.errors import InputError
from clew.engine.config import TrainConfig

_START, _END = (
    1 / 25,
    1e-4 / 25,
)  # relative to the peak: at the start of the warm-up, at the end of the run
_SCALE = "lr_scale"
_STEP, _MOMENTS = "step", ("exp_avg", "exp_avg_sq")  # AdamW's state of a parameter


def build_optimizer(
    model: nn.Module, config: TrainConfig, *, lr: float, capturable: bool = False
) -> AdamW:
    """A fused AdamW: one pass over the weights, which also clips the gradient and can skip a step
    on the device.

    Biases, norms and other vectors are not decayed. A model with `learning_rate_scale(name)` gives
    each parameter its own share of the learning rate. `capturable` keeps the learning rate on the
    device, for a step that is a CUDA graph.
    """
    scale_of: Callable[[str], float] = getattr(model, "learning_rate_scale", lambda _: 1.0)
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((scale_of(name), parameter.dim() >= 2), []).append(parameter)
    if not groups:
        raise InputError("the model has no parameters to train: check requires_grad.")
    device = next(iter(groups.values()))[0].device
    return AdamW(
        [
            {
                "params": parameters,
                "weight_decay": config.weight_decay if is_matrix else 0.0,
                _SCALE: scale,
                "lr": torch.tensor(lr * scale, device=device) if capturable else lr * scale,
            }
            for (scale, is_matrix), parameters in sorted(groups.items(), key=_vectors_last)
        ],
        betas=config.betas,
        fused=True,
        capturable=capturable,
    )


def _vectors_last(group: tuple[tuple[float, bool], list[nn.Parameter]]) -> bool:
    (_, is_matrix), _ = group
    return not is_matrix


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate; each group of parameters has its own share of it."""
    for group in optimizer.param_groups:
        own = lr * group.get(_SCALE, 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The state as "<parameter>/<name>"."""
    return {
        f"{name}/{what}": value
        for name, parameter in model.named_parameters()
        for what, value in optimizer.state.get(parameter, {}).items()
    }


def optimizer_shapes(model: nn.Module, names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the state that `optimizer_tensors` gives for those parameters that
    have any in `names`."""
    return {
        f"{name}/{what}": () if what == _STEP else tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if f"{name}/{_STEP}" in names
        for what in (_STEP, *_MOMENTS)
    }


def load_optimizer(optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Restores the state; counters go where this device's optimizer keeps them."""
    for name, parameter in model.named_parameters():
        if f"{name}/{_STEP}" in tensors:
            optimizer.state[parameter] = {
                what: _like_parameter(tensors[f"{name}/{what}"], parameter)
                for what in (_STEP, *_MOMENTS)
            }


def _like_parameter(value: Tensor, parameter: Tensor) -> Tensor:
    if value.shape != parameter.shape:  # the step counter
        return value.to(parameter.device)
    return torch.empty_like(parameter).copy_(value)


@dataclass(frozen=True, kw_only=True)
class OneCycle:
    """A One-Cycle schedule: the learning rate rises along a half cosine during the warm-up, then
    falls along another to almost 0."""

    peak: float
    total_steps: int
    warmup_fraction: float

    def lr(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        last = max(1, self.total_steps - 1)
        top = self.warmup_fraction * last
        if step < top:
            return self.peak * _between(_START, 1.0, step / top)
        return self.peak * _between(1.0, _END, min(1.0, (step - top) / max(1e-9, last - top)))


def _between(first: float, second: float, way: float) -> float:
    return second + (first - second) * (1 + math.cos(math.pi * way)) / 2
