"""A whole optimiser step as one CUDA graph: recorded once a shape of batch, then replayed.

A small network's step is hundreds of kernels of a few microseconds each; launching them one by one
takes many times as long as running them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clew.engine.batches import count_samples, map_tensors, named_tensors
from clew.engine.optimizer import set_lr

if TYPE_CHECKING:
    from clew.engine.step import EagerStep, StepResult

Shapes = tuple[Any, ...]

# A shape is run this often before it is recorded: libraries set themselves up on first use, and
# the odd batch at an epoch's end is not worth a recording.
RUNS_BEFORE = 2
_MAX_GRAPHS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: "StepResult"


class GraphedStep:
    """Does what `eager` does, from recordings; batches of rare shapes run through `eager` itself.

    A model whose batches differ in shape may have `pad_batch(batch)`, which fills one up to one
    of few shapes without changing what comes out.
    """

    def __init__(self, eager: "EagerStep") -> None:
        self.precision = eager.precision
        self._eager = eager
        self._pad: Callable[[Any], Any] | None = getattr(eager.model, "pad_batch", None)
        self._seen: Counter[Shapes] = Counter()
        self._recordings: dict[Shapes, _Recording] = {}
        self._memory = torch.cuda.graph_pool_handle()

    def run(self, micro_batches: Sequence[Any], lr: float) -> "StepResult":
        batches = [self._pad(batch) for batch in micro_batches] if self._pad else micro_batches
        shapes = tuple(shapes_of(batch) for batch in batches)
        recording = self._recordings.get(shapes)
        if recording is None:
            self._seen[shapes] += 1
            if self._seen[shapes] <= RUNS_BEFORE or len(self._recordings) >= _MAX_GRAPHS:
                return self._eager.run(batches, lr)
            recording = self._recordings[shapes] = self._record(batches)
        set_lr(self._eager.optimizer, lr)
        given = [tensor for batch in batches for _, tensor in named_tensors(batch)]
        torch._foreach_copy_(recording.inputs, given)
        recording.graph.replay()
        return recording.result

    def _record(self, batches: Sequence[Any]) -> _Recording:
        """Recording computes nothing: the weights stay as they are."""
        inputs: list[Tensor] = []

        def hold(tensor: Tensor) -> Tensor:
            inputs.append(tensor.clone())
            return inputs[-1]

        held = [map_tensors(batch, hold) for batch in batches]
        counts = [count_samples(batch) for batch in held]
        graph = torch.cuda.CUDAGraph()
        self._eager.optimizer.zero_grad(set_to_none=True)
        # Other threads go on reading batches into pinned memory, which must not disturb it.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            result = self._eager.compute(held, counts)
        return _Recording(graph=graph, inputs=inputs, result=result)


def shapes_of(batch: Any) -> Shapes:
    """What a recording depends on: the tensors' shapes, and numbers such as the largest degree."""
    tensors = ((name, value.shape, value.dtype) for name, value in named_tensors(batch))
    named = batch.items() if isinstance(batch, dict) else ()
    numbers = ((name, value) for name, value in named if isinstance(value, int | float))
    return (*tensors, *numbers)
