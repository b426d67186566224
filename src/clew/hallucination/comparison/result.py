"""What a comparison comes to, store by store and as a whole."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.hallucination.comparison.failures import LeftOut
from clew.hallucination.comparison.rows import Measured
from clew.hallucination.comparison.trial import Trial


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What the methods reached when fitted on one store, by the store that they are tested on."""

    trial: Trial
    measured: dict[str, list[Measured]]
    left_out: list[LeftOut]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A finished comparison: its folder, what its results.json holds, and the methods that broke
    by a fault of clew."""

    folder: Path
    results: dict[str, Any]
    faults: tuple[LeftOut, ...]
