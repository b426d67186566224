"""The plan's precision as a Lightning Fabric plugin, so that no loop needs to know which one it is;
and a cast of all weights to 16 bits at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clew.engine.config import Precision as PrecisionName

if TYPE_CHECKING:
    from lightning_fabric.plugins.precision import Precision


_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_CAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


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
