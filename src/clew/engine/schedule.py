"""One-Cycle as a closed form of the step: there is no state to save, nothing to get out of step."""

import math
from dataclasses import dataclass

_START, _END = 1 / 25, 1e-4 / 25  # of the peak: where the warm-up begins, where the run ends


@dataclass(frozen=True, kw_only=True)
class OneCycle:
    """Rises in a half cosine during the warm-up, then falls in another to almost nothing."""

    peak: float
    total_steps: int
    warmup_fraction: float

    def lr(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        last = max(1, self.total_steps - 1)
        top = self.warmup_fraction * last
        if step < top:
            return self.peak * _between(_START, 1.0, step / top)
        return self.peak * _between(1.0, _END, min(1.0, (step - top) / max(1e-9, last - top)))


def _between(first: float, second: float, way: float) -> float:
    return second + (first - second) * (1 + math.cos(math.pi * way)) / 2
