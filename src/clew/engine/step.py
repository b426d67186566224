"""One optimizer step: forward, backward, clip, update, all without waiting for the device. Kernels
are launched one by one, or the whole step is recorded as a CUDA graph and replayed. Its precision
is a Lightning Fabric plugin."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from clew.engine.config import Precision as PrecisionName
from clew.engine.config import StepOutput
from clew.engine.feed import count_samples, map_tensors, named_tensors
from clew.engine.plan import StepVariant
from clew.engine.processes import GradientSum, Wishes

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.precision import Precision


Shapes = tuple[Any, ...]

# A shape is run this often before it is recorded: libraries initialize on first use, and the odd
# batch at an epoch's end is not worth a recording.
RUNS_BEFORE = 2
_MAX_GRAPHS = 8
LR_SCALE = "lr_scale"  # of a group of parameters, in the optimizer


_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_CAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """The result of one step. Tensors are on the device and may be overwritten by the next step.

    `loss` and `metrics` are means over this process's `samples`; `gradient_norm` is that of the
    whole batch before clipping. If it is not finite, nothing was updated.
    """

    samples: int
    loss: Float[Tensor, ""]
    gradient_norm: Float[Tensor, ""]
    metrics: dict[str, Float[Tensor, ""]]


def build_step(
    model: nn.Module,
    variant: StepVariant,
    optimizer: Optimizer,
    fabric: "Fabric",
    *,
    max_norm: float = 1.0,
    wishes: Wishes | None = None,
) -> "EagerStep | GraphedStep":
    """The step as planned. `model` has a `training_step`; `optimizer` is `build_optimizer`'s."""
    forward: Callable[[Any], StepOutput] = (
        _compile(model) if variant.compile else model.training_step  # type: ignore[assignment]
    )
    # All weights are cast at once. torch.compile does so itself; gradient checkpointing needs the
    # weights again in the backward pass, when they are no longer cast.
    plain = not variant.compile and not variant.gradient_checkpointing
    is_mixed = fabric.device.type != "cpu" and variant.precision in _DTYPES
    eager = EagerStep(
        model,
        optimizer,
        precision=build_precision(variant.precision, fabric.device),
        max_norm=max_norm,
        gradients=GradientSum(model, wishes or Wishes()) if fabric.world_size > 1 else None,
        forward=forward,
        cast=WeightCast(model, variant.precision) if is_mixed and plain else None,
    )
    return GraphedStep(eager) if variant.cuda_graph else eager


def _compile(model: nn.Module) -> Callable[[Any], StepOutput]:
    """Compile `training_step`. Every shape is compiled separately, so batches of varying shape are
    padded to a few shapes."""
    compiled = torch.compile(model.training_step)  # type: ignore[arg-type]
    pad = getattr(model, "pad_batch", None)
    return compiled if pad is None else lambda batch: compiled(pad(batch))


class EagerStep:
    """Launches the kernels one by one; `forward` may be a compiled `training_step`.

    A CUDA graph records `compute`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        precision: "Precision",
        max_norm: float,
        forward: Callable[[Any], StepOutput],
        gradients: GradientSum | None = None,
        cast: "WeightCast | None" = None,
    ) -> None:
        self.model, self.optimizer, self.precision = model, optimizer, precision
        self._forward, self._cast = forward, cast
        self._max_norm, self._gradients = max_norm, gradients
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._scaler = getattr(precision, "scaler", None)

    def run(self, micro_batches: Sequence[Any], lr: float) -> StepResult:
        """One update from batches that are already on the device, each weighted by its samples."""
        set_lr(self.optimizer, lr)
        self.optimizer.zero_grad(set_to_none=True)
        return self.compute(micro_batches, [count_samples(batch) for batch in micro_batches])

    def compute(self, micro_batches: Sequence[Any], counts: Sequence[int]) -> StepResult:
        """Run the step itself. Gradients must be None, and the learning rate must be set."""
        loss, metrics = self._accumulate(micro_batches, counts)
        norm = self._update(sum(counts))
        return StepResult(samples=sum(counts), loss=loss, gradient_norm=norm, metrics=metrics)

    def _accumulate(
        self, micro_batches: Sequence[Any], counts: Sequence[int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the gradients of the mean over all samples; returns that mean loss and metrics."""
        total = sum(counts)
        sums: dict[str, Tensor] = {}
        for batch, count in zip(micro_batches, counts, strict=True):
            cast = nullcontext() if self._cast is None else self._cast.applied()
            with self.precision.forward_context(), cast:
                output = self._forward(batch)
            share = count / total
            self.precision.backward(output.loss if share == 1 else output.loss * share, None)
            for name, value in (("loss", output.loss), *output.metrics.items()):
                part = value.detach().float() if share == 1 else value.detach().float() * share
                sums[name] = sums[name] + part if name in sums else part
        return sums.pop("loss"), sums

    def _update(self, samples: int) -> Float[Tensor, ""]:
        """Clips and steps; returns the norm of the gradient. Without a finite norm nothing
        changes."""
        if self._gradients is not None:
            self._gradients.run(samples)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self._scaler is not None:
            norm = norm / self._scaler.scale(torch.ones_like(norm))
        # The fused optimizer divides by this while it reads the gradients: clipping is free.
        self.optimizer.grad_scale = (norm / self._max_norm).clamp_min(1.0)  # type: ignore[attr-defined]
        if self._scaler is None:
            self.optimizer.found_inf = norm.isfinite().logical_not().float()  # type: ignore[attr-defined]
            self.optimizer.step()
        else:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        return norm


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate; each group of parameters has its own share of it."""
    for group in optimizer.param_groups:
        own = lr * group.get(LR_SCALE, 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


class _Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: StepResult


class GraphedStep:
    """Replays steps recorded as CUDA graphs.

    A small network's step is hundreds of kernels of a few microseconds each; launching them one by
    one takes many times as long as running them. This does what `eager` does from recordings, one
    per batch shape; batches of rare shapes run through `eager` itself. A model whose batches vary
    in shape may have `pad_batch(batch)`, which pads one to one of a few shapes without changing the
    result.
    """

    def __init__(self, eager: EagerStep) -> None:
        self.precision = eager.precision
        self._eager = eager
        self._pad: Callable[[Any], Any] | None = getattr(eager.model, "pad_batch", None)
        self._seen: Counter[Shapes] = Counter()
        self._recordings: dict[Shapes, _Recording] = {}
        self._memory = torch.cuda.graph_pool_handle()

    def run(self, micro_batches: Sequence[Any], lr: float) -> StepResult:
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
        """Recording computes nothing: the weights stay unchanged."""
        inputs: list[Tensor] = []

        def hold(tensor: Tensor) -> Tensor:
            inputs.append(tensor.clone())
            return inputs[-1]

        held = [map_tensors(batch, hold) for batch in batches]
        counts = [count_samples(batch) for batch in held]
        graph = torch.cuda.CUDAGraph()
        self._eager.optimizer.zero_grad(set_to_none=True)
        # Other threads keep reading batches into pinned memory, which must not disturb it.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            result = self._eager.compute(held, counts)
        return _Recording(graph=graph, inputs=inputs, result=result)


def shapes_of(batch: Any) -> Shapes:
    """What a recording depends on: the tensors' shapes, and numbers such as the largest degree."""
    tensors = ((name, value.shape, value.dtype) for name, value in named_tensors(batch))
    named = batch.items() if isinstance(batch, dict) else ()
    numbers = ((name, value) for name, value in named if isinstance(value, int | float))
    return (*tensors, *numbers)


class WeightCast:
    """Casts to 16 bits, all at once, exactly the weights that autocast would cast."""

    def __init__(self, model: nn.Module, precision: str) -> None:
        self._dtype = _DTYPES[precision]
        self._owners = [
            (module, name)
            for module in model.modules()
            if isinstance(module, _CAST)
            for name, weight in module._parameters.items()
            if weight is not None
        ]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the modules compute with 16-bit copies; gradients reach the weights."""
        weights = [module._parameters[name] for module, name in self._owners]
        copies = _CastTogether.apply(self._dtype, *weights)
        try:
            for (module, name), copy in zip(self._owners, copies, strict=True):
                module._parameters[name] = copy
            yield
        finally:
            for (module, name), weight in zip(self._owners, weights, strict=True):
                module._parameters[name] = weight


class _CastTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtype = weights[0].dtype if weights else dtype
        return _cast(weights, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        there = iter(_cast([g for g in gradients if g is not None], ctx.dtype))
        return None, *(None if gradient is None else next(there) for gradient in gradients)


def _cast(tensors: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)


@contextmanager
def restored_precision() -> Iterator[None]:
    """Restores the precision of float32 matrix multiplications, which PyTorch keeps per process:
    whatever runs after a training must not be less accurate for it."""
    matmul, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolutions


def build_precision(name: PrecisionName, device: torch.device) -> "Precision":
    """Autocast and, for fp16, its loss scaler. Also sets the precision of a GPU's float32 matrix
    multiplications, which PyTorch keeps per process."""
    from lightning_fabric.plugins.precision import MixedPrecision, Precision

    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if name == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = name != "fp32"
    if name == "bf16":
        return MixedPrecision("bf16-mixed", device.type)
    if name == "fp16":
        return MixedPrecision("16-mixed", device.type)
    return Precision()
