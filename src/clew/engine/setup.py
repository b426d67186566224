"""Model, optimizer, step and batches as planned; rebuilt when the plan changes. The schedule is a
closed form of the step, so that it has no state to save."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from clew.base.errors import InputError, TrainingError
from clew.base.memory import free_memory
from clew.base.texts import counted
from clew.engine.config import Batches, OpenBatches, TrainConfig
from clew.engine.feed import (
    Feed,
    Group,
    Position,
    count_samples,
    move,
    open_batches,
    same_random_numbers,
)
from clew.engine.plan import HardwarePlan
from clew.engine.processes import Wishes, broadcast_weights
from clew.engine.step import LR_SCALE, EagerStep, GraphedStep, build_step

if TYPE_CHECKING:
    from lightning_fabric import Fabric


# The learning rate at the start of the warm-up and at the end of the run, relative to the peak.
_START, _END = 1 / 25, 1e-4 / 25
_STEP, _MOMENTS = "step", ("exp_avg", "exp_avg_sq")  # AdamW's state of a parameter


class Setup:
    """Everything the loop works with: model, optimizer, step and batches. `plan` may change during
    the run; model and optimizer stay."""

    def __init__(
        self,
        model: nn.Module,
        train: Batches | OpenBatches,
        *,
        config: TrainConfig,
        plan: HardwarePlan,
        fabric: "Fabric",
    ) -> None:
        self.config, self.fabric, self.wishes = config, fabric, Wishes()
        self.model = place_model(
            model,
            fabric.device,
            channels_last=plan.channels_last,
            gradient_checkpointing=plan.gradient_checkpointing,
        )
        broadcast_weights(fabric, self.model)
        self._train = train
        self.peak_lr = config.peak_lr(plan.effective_batch)
        self.optimizer = build_optimizer(
            self.model, config, lr=self.peak_lr, capturable=plan.cuda_graph
        )
        self.plan = plan
        self.feed = self._open_feed()
        self.step = self._build_step()

    def shrink(self, group: Group, step: int) -> None:
        """Use smaller micro-batches after a step that ran out of memory, starting with its first
        sample. Raises TrainingError if they cannot be smaller."""
        samples = sum(map(count_samples, group.read))
        position = self.feed.position()
        begin = Position(epoch=position.epoch, samples=position.samples - samples)
        self.plan = shrink_micro_batch(
            self.plan, is_ready_made=not callable(self._train), step=step
        )
        # Free everything that the failed step may still hold.
        group.read, group.batches = [], []
        self.feed.close()
        del self.step
        self.optimizer.zero_grad(set_to_none=True)
        free_memory()
        with same_random_numbers(self.fabric.device):
            self.feed = self._open_feed()
            self.feed.open(begin)
        self.step = self._build_step()

    def leave_fp16(self, reason: str) -> None:
        """Switch from fp16 to bf16 if the device supports it, otherwise to fp32."""
        cuda = self.fabric.device.type == "cuda"
        has_bf16 = not cuda or torch.cuda.is_bf16_supported(including_emulation=False)
        self.plan = self.plan.change("precision", "bf16" if has_bf16 else "fp32", reason)
        self.step = self._build_step()

    def read_again(self, position: Position) -> list[Any]:
        """Read the batches of the step that started at `position` again; the feed's own position is
        restored."""
        now = self.feed.position()
        with same_random_numbers(self.fabric.device):
            self.feed.open(position)
            group = self.feed.next_group()
            self.feed.open(now)
        return [] if group is None else group.read

    def on_device(self, batches: list[Any]) -> list[Any]:
        last = self.plan.channels_last
        return [move(batch, self.fabric.device, channels_last=last) for batch in batches]

    def _open_feed(self) -> Feed:
        return Feed(
            open_batches(self._train, self.plan, seed=self.config.seed, shuffle=True),
            device=self.fabric.device,
            grad_accum=self.plan.grad_accum,
            seed=self.config.seed,
            rank=self.fabric.global_rank,
            channels_last=self.plan.channels_last,
        )

    def _build_step(self) -> EagerStep | GraphedStep:
        return build_step(
            self.model,
            self.plan.variant,
            self.optimizer,
            self.fabric,
            max_norm=self.config.max_norm,
            wishes=self.wishes,
        )


def shrink_micro_batch(plan: HardwarePlan, *, is_ready_made: bool, step: int) -> HardwarePlan:
    """The plan with at most half the micro-batch and the same effective batch, so that results stay
    the same; raises TrainingError when that is impossible."""
    where = f"step {step + 1} ran out of memory with {counted(plan.batch_size, 'sample')} at a time"
    if is_ready_made:
        raise TrainingError(
            f"{where}, and the given loader has a fixed batch size: use a smaller batch_size and "
            "a larger grad_accum, or pass a function that opens the batches."
        )
    # The largest divisor of the effective batch that divides evenly among the processes.
    shares = plan.processes
    sizes = range(plan.batch_size // 2 // shares * shares, 0, -shares)
    smaller = next((size for size in sizes if plan.effective_batch % size == 0), None)
    if smaller is None:
        raise TrainingError(
            f"{where}: a single sample does not fit. Try `gradient_checkpointing=True` or a "
            "smaller network, or close other programs that use memory."
        )
    accum = plan.effective_batch // smaller
    if plan.processes > 1:
        raise TrainingError(
            f"{where}, on one of {plan.processes} processes: restart with `batch_size={smaller}` "
            f"and `grad_accum={accum}` to resume from the last checkpoint."
        )
    reason = (
        f"{where}; continuing with {accum} x {smaller} samples, the same effective batch size of "
        f"{plan.effective_batch}"
    )
    return plan.change("batch_size", smaller, reason).change("grad_accum", accum, reason)


def place_model(
    model: nn.Module, device: torch.device, *, channels_last: bool, gradient_checkpointing: bool
) -> nn.Module:
    model = model.to(device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if gradient_checkpointing:
        checkpoint_activations(model)
    return model


def checkpoint_activations(model: nn.Module) -> None:
    """Makes the model store only the activations between its parts.

    A model (or its `network`) with `enable_gradient_checkpointing()` uses that instead. Otherwise
    the parts are the direct children of the network, and each member of a module list.
    """
    network = getattr(model, "network", model)
    for module in (model, network):
        enable = getattr(module, "enable_gradient_checkpointing", None)
        if callable(enable):
            enable()
            return
    for part in _parts(network):
        if getattr(part.forward, "func", None) is not _run_part:  # not wrapped yet
            part.forward = partial(_run_part, part, part.forward)


def _parts(network: nn.Module) -> Iterator[nn.Module]:
    """The modules to checkpoint. Lists and dicts of modules are never called, so their members are
    taken instead."""
    for child in network.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _parts(child)
        else:
            yield child


def _run_part(part: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not (part.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    norms = [m for m in part.modules() if isinstance(m, _NormBase) and m.track_running_stats]
    # torch.compile already keeps buffer updates out of the recomputation.
    if not norms or torch.compiler.is_compiling():
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    def contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
        """Those of the forward pass and of its recomputation."""
        return nullcontext(), _without_statistics(norms)

    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


@contextmanager
def _without_statistics(norms: list[_NormBase]) -> Iterator[None]:
    """Keep the recomputation from updating batch norm's running statistics a second time."""
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count


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
                LR_SCALE: scale,
                "lr": torch.tensor(lr * scale, device=device) if capturable else lr * scale,
            }
            for (scale, is_matrix), parameters in sorted(
                groups.items(), key=lambda group: not group[0][1]
            )
        ],
        betas=config.betas,
        fused=True,
        capturable=capturable,
    )


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
                _STEP: tensors[f"{name}/{_STEP}"].to(parameter.device),
                **{
                    what: torch.empty_like(parameter).copy_(tensors[f"{name}/{what}"])
                    for what in _MOMENTS
                },
            }


def one_cycle_lr(step: int, *, peak: float, total_steps: int, warmup_fraction: float) -> float:
    """The learning rate of a step, counted from 0, in a One-Cycle schedule: it rises along a half
    cosine during the warm-up, then falls along another to almost 0."""
    last = max(1, total_steps - 1)
    top = warmup_fraction * last
    if step < top:
        return peak * _between(_START, 1.0, step / top)
    return peak * _between(1.0, _END, min(1.0, (step - top) / max(1e-9, last - top)))


def _between(first: float, second: float, share: float) -> float:
    return second + (first - second) * (1 + math.cos(math.pi * share)) / 2
