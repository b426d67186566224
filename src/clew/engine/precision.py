"""The plan's precision as Lightning Fabric's object, so that no loop asks which one it is."""

import torch
from lightning_fabric.plugins.precision import MixedPrecision, Precision

from clew.engine.config import Precision as PrecisionName

__all__ = ["Precision", "build_precision"]


def build_precision(name: PrecisionName, device: torch.device) -> Precision:
    """Autocast and, for fp16, its loss scaler. On a GPU this also sets how exactly float32
    matrices are multiplied, which PyTorch keeps for the whole process."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if name == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = name != "fp32"
    if name == "bf16":
        return MixedPrecision("bf16-mixed", device.type)
    if name == "fp16":
        return MixedPrecision("16-mixed", device.type)
    return Precision()
