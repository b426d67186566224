"""How much memory the run uses, for people to see."""

import psutil
import torch


class MemoryUse:
    """On a GPU the most that tensors took at once, else the memory that is the process's own.

    Pages of mapped shards are not: the system drops them when the memory is wanted.
    """

    def __init__(self, device: torch.device, peak_bytes: int = 0) -> None:
        self._device, self.peak_bytes = device, peak_bytes
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._process = psutil.Process()

    def look(self) -> int:
        """Bytes now; the greatest of them is remembered."""
        if self._device.type == "cuda":
            used = torch.cuda.max_memory_allocated(self._device)
        else:
            now = self._process.memory_info()
            used = now.rss - getattr(now, "shared", 0)
        self.peak_bytes = max(self.peak_bytes, used)
        return used
