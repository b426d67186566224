"""Model, optimizer, step and batches as planned; rebuilt when the plan changes."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clew.base.errors import TrainingError
from clew.base.memory import free_memory
from clew.base.texts import counted
from clew.engine.batches import count_samples, move
from clew.engine.config import TrainConfig
from clew.engine.feed import Feed, Group, Position, Source
from clew.engine.optimizer import build_optimizer
from clew.engine.placement import place_model
from clew.engine.planning.plan import HardwarePlan
from clew.engine.processes import Wishes, broadcast_weights
from clew.engine.seeding import same_random_numbers
from clew.engine.step import Step, build_step

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Setup:
    """Everything the loop works with: model, optimizer, step and batches. `plan` may change during
    the run; model and optimizer stay."""

    def __init__(
        self,
        model: nn.Module,
        source: Source,
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
        self._source = source
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
            self.plan, is_ready_made=self._source.is_ready_made, step=step
        )
        self._let_go(group)
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
            self._source.open(self.plan),
            device=self.fabric.device,
            grad_accum=self.plan.grad_accum,
            seed=self.config.seed,
            rank=self.fabric.global_rank,
            channels_last=self.plan.channels_last,
        )

    def _build_step(self) -> Step:
        return build_step(
            self.model,
            self.plan.way,
            self.optimizer,
            self.fabric,
            max_norm=self.config.max_norm,
            wishes=self.wishes,
        )

    def _let_go(self, group: Group) -> None:
        """Frees everything that the failed step may still hold."""
        group.read, group.batches = [], []
        self.feed.close()
        del self.step
        self.optimizer.zero_grad(set_to_none=True)
        free_memory()


def shrink_micro_batch(plan: HardwarePlan, *, is_ready_made: bool, step: int) -> HardwarePlan:
    """The plan with at most half the micro-batch and the same effective batch, so that results stay
    the same; raises TrainingError when that is impossible."""
    where = f"step {step + 1} ran out of memory with {counted(plan.batch_size, 'sample')} at a time"
    if is_ready_made:
        raise TrainingError(
            f"{where}, and the given loader has a fixed batch size: use a smaller batch_size and "
            "a larger grad_accum, or pass a function that opens the batches."
        )
    smaller = _next_divisor(plan.effective_batch, plan.batch_size, plan.processes)
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


def _next_divisor(whole: int, part: int, shares: int) -> int | None:
    """The largest divisor of `whole` that is at most half of `part` and divides evenly among the
    processes."""
    sizes = range(part // 2 // shares * shares, 0, -shares)
    return next((size for size in sizes if whole % size == 0), None)
