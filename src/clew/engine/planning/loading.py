"""How batches reach the device: how many threads read them, and how they are copied."""

import math
from dataclasses import dataclass

from clew.base.texts import counted, step_text
from clew.engine.planning.plan import Choice

_MAX_WORKERS = 8
_SPARED_CORES = 2  # for the loop itself and for whatever else the machine does
# Threads that read while a GPU is busy share the GIL with the loop: count on half speed.
_SLOWER_BESIDE_A_STEP = 2


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Chooses how batches are loaded. `asked` is the requested number of threads; `cores` are those
    of this process."""

    asked: int | None
    cores: int
    is_cuda: bool

    def choose(
        self, *, read_seconds: float | None = None, step_seconds: float | None = None
    ) -> dict[str, Choice]:
        """Choose the number of threads: enough to keep up with training if the times to read a
        batch and to train on it are known, otherwise as many as the cores allow."""
        workers, why = self._workers(read_seconds, step_seconds)
        kept, ahead = "workers are kept between epochs", "batches prefetched by each worker"
        none = "there are no workers"
        copied = "copies to the GPU overlap with the step"
        pinned = copied if self.is_cuda else "there is no GPU to copy to"
        return {
            "num_workers": (workers, why),
            "persistent_workers": (workers > 0, kept if workers else none),
            "prefetch_factor": (2, ahead if workers else none),
            "pin_memory": (self.is_cuda, pinned),
            "non_blocking": (self.is_cuda, pinned),
        }

    def _workers(self, read_seconds: float | None, step_seconds: float | None) -> tuple[int, str]:
        if self.asked is not None:
            when = "; batches are read on demand" if self.asked == 0 else ""
            return self.asked, f"requested with `num_workers={self.asked}`{when}"
        cores = counted(self.cores, "core")
        if read_seconds is None or step_seconds is None:
            if not self.is_cuda:
                return 1, f"one worker prefetches; the training step itself needs the {cores}"
            return self._most, f"as many as {cores} allow"
        ratio = read_seconds / step_seconds
        wanted = math.ceil(_SLOWER_BESIDE_A_STEP * ratio) + 1 if self.is_cuda else math.ceil(ratio)
        read, step = step_text(read_seconds), step_text(step_seconds)
        took = f"a batch takes {read} to read and {step} to train on"
        return max(1, min(wanted, self._most)), f"{took}; {cores}"

    @property
    def _most(self) -> int:
        return max(1, min(self.cores - _SPARED_CORES, _MAX_WORKERS)) if self.is_cuda else self.cores
