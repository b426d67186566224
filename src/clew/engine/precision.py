"""The plan's precision as Lightning Fabric's object, so that no loop asks which one it is."""

from typing import TYPE_CHECKING

import torch

from clew.engine.config import Precision as PrecisionName

if TYPE_CHECKING:
    from lightning_fabric.plugins.precision import Precision


def build_precision(name: PrecisionName, device: torch.device) -> "Precision":
    """Autocast and, for fp16, its loss scaler. Also sets how exact a GPU multiplies float32
    matrices, which PyTorch keeps for the whole process."""
    from lightning_fabric.plugins.precision import MixedPrecision, Precision

    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if name == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = name != "fp32"
    if name == "bf16":
        return MixedPrecision("bf16-mixed", device.type)
    if name == "fp16":
        return MixedPrecision("16-mixed", device.type)
    return Precision()
