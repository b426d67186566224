"""PyTorch's kernels on this CPU."""

import platform

import torch


def leave_slow_kernels() -> None:
    """Turn oneDNN off on ARM without SVE. It has no kernels for such a CPU that are faster than
    PyTorch's own: an LSTM takes twice as long with it, the scores of an attention map thirteen
    times."""
    is_arm = platform.machine().lower() in ("aarch64", "arm64")
    if is_arm and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
