"""The figures of an epoch's steps: left on the device, read back now and then, added up exactly."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import torch

from clew.engine.step import StepResult

# A GPU works on while steps are launched; reading a figure makes it wait, so that is done rarely.
STEPS_A_READING = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """One step: means over this process's samples; the norm is that of all processes."""

    samples: int
    gradient_norm: float
    means: dict[str, float]

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.gradient_norm) and self.has_finite_loss

    @property
    def has_finite_loss(self) -> bool:
        return math.isfinite(self.means["loss"])


class Readings:
    """Holds the figures of up to `size` steps on the device; reading them is one copy."""

    def __init__(self, device: torch.device) -> None:
        self._size = STEPS_A_READING if device.type == "cuda" else 1
        self._names: tuple[str, ...] = ()
        self._values: torch.Tensor | None = None
        self._samples: list[int] = []

    @property
    def is_full(self) -> bool:
        return len(self._samples) == self._size

    def add(self, result: StepResult) -> None:
        values = torch.stack([result.gradient_norm, result.loss, *result.metrics.values()])
        if self._values is None or len(values) != self._values.shape[1]:
            self._names = ("loss", *result.metrics)
            self._values = values.new_empty(self._size, len(values))
        self._values[len(self._samples)] = values
        self._samples.append(result.samples)

    def read(self) -> list[Figures]:
        """The steps since the last reading, in their order; waits for the device."""
        if self._values is None or not self._samples:
            return []
        rows = self._values[: len(self._samples)].tolist()
        counts, self._samples = self._samples, []
        return [
            Figures(samples=count, gradient_norm=norm, means=dict(zip(self._names, means)))  # noqa: B905
            for count, (norm, *means) in zip(counts, rows, strict=True)
        ]


@dataclass(kw_only=True)
class EpochSums:
    """Running sums of an epoch, of one process or of all."""

    samples: int = 0
    steps: int = 0
    skipped: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, figures: Figures) -> None:
        """Steps that were skipped (fp16 does so at first) count as seen, not in the means."""
        self.steps += 1
        self.samples += figures.samples
        if not figures.is_finite:
            self.skipped += figures.samples
            return
        for name, mean in figures.means.items():
            self.sums[name] = self.sums.get(name, 0.0) + mean * figures.samples

    def means(self) -> dict[str, float]:
        counted = self.samples - self.skipped
        return {name: value / counted for name, value in self.sums.items()} if counted else {}

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """What all processes have together."""
        whole = cls()
        for part in parts:
            whole.samples += part.samples
            whole.skipped += part.skipped
            whole.steps = part.steps
            for name, value in part.sums.items():
                whole.sums[name] = whole.sums.get(name, 0.0) + value
        return whole
