"""One way to make a step, run on a copy of the model; around it nothing is left changed."""

import copy
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clew.engine.config import TrainConfig
from clew.engine.optimizer import build_optimizer
from clew.engine.placement import place_model
from clew.engine.planning.plan import HardwarePlan
from clew.engine.seeding import same_random_numbers
from clew.engine.step import RUNS_BEFORE, build_step
from clew.memory import free_memory

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Trial:
    """One way, on a copy of the model whose weights never move: the learning rate is 0."""

    def __init__(
        self,
        model: nn.Module,
        plan: HardwarePlan,
        batches: list[Any],
        fabric: "Fabric",
        config: TrainConfig,
    ) -> None:
        model = place_model(
            copy.deepcopy(model).train(),
            fabric.device,
            channels_last=plan.channels_last,
            gradient_checkpointing=plan.gradient_checkpointing,
        )
        optimizer = build_optimizer(model, config, lr=0.0, capturable=plan.cuda_graph)
        self._step = build_step(model, plan, optimizer, fabric, max_norm=config.max_norm)
        self._device = fabric.device
        self._endless = itertools.cycle(batches)
        self._warm_up_steps = 1
        if plan.compile or plan.cuda_graph:  # every shape is compiled or recorded by itself
            self._warm_up_steps = (RUNS_BEFORE + 1) * len(batches)
        self.guess = self.first_seconds = 0.0

    def warm_up(self) -> None:
        """Until nothing is set up, compiled or recorded any more; `first_seconds` is what that
        took on top of the steps."""
        begun = time.perf_counter()
        for _ in range(self._warm_up_steps):
            self.run()
        self._wait()
        first = time.perf_counter() - begun
        self.guess = self.run_block(1)
        self.first_seconds = max(0.0, first - self._warm_up_steps * self.guess)

    def run_block(self, steps: int) -> float:
        """Seconds a step."""
        self._wait()
        begun = time.perf_counter()
        for _ in range(steps):
            self.run()
        self._wait()
        return (time.perf_counter() - begun) / steps

    def run(self) -> None:
        self._step.run([next(self._endless)], 0.0)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class Footprint:
    """What the first trial took of a GPU's memory tells whether another fits beside it. On the
    CPU a trial that is not running takes little."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._before = device, 0

    def __enter__(self) -> "Footprint":
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(self, *_: object) -> None: ...

    def fits_again(self) -> bool:
        if self._device.type != "cuda":
            return True
        peak = torch.cuda.max_memory_allocated(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        free = torch.cuda.mem_get_info(self._device)[0] + reserved - peak
        return free > 2 * (peak - self._before)


@contextmanager
def left_as_it_was(device: torch.device) -> Iterator[None]:
    """Random numbers, and how PyTorch multiplies float32, are afterwards what they were."""
    matmul, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        with same_random_numbers(device):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        if device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = convolutions
            free_memory()
