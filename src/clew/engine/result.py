"""What a finished run gives back, and `result.json`, where it finds that again."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from clew.engine.folders import RESULT, write_json
from clew.engine.metrics import Metrics
from clew.engine.planning.plan import HardwarePlan
from clew.engine.state import RunState


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """A trained network's figures. `best_epoch` counts from 1; `best_val` are the metrics of its
    validation, `threshold` the probability where its F1 is greatest, at which `test` is taken.

    `seconds` counts all runs that it took, validation included; the rates are those of training
    alone. `history` has a row an epoch, as log.csv.
    """

    history: list[dict[str, Any]]
    best_epoch: int
    best_val: Metrics
    threshold: float | None
    test: Metrics | None
    plan: HardwarePlan
    seconds: float
    samples_per_second: float
    data_wait_share: float
    peak_memory_bytes: int
    parameters: int

    @classmethod
    def of_run(
        cls, state: RunState, plan: HardwarePlan, *, test: Metrics | None, parameters: int
    ) -> Self:
        assert state.best is not None
        return cls(
            history=state.history,
            best_epoch=state.best.epoch + 1,
            best_val=state.best.metrics,
            threshold=state.best.threshold,
            test=test,
            plan=plan,
            seconds=state.seconds,
            samples_per_second=_over_all(state.history, "samples_per_second"),
            data_wait_share=_over_all(state.history, "data_wait_share"),
            peak_memory_bytes=state.peak_memory_bytes,
            parameters=parameters,
        )

    def save(self, folder: Path) -> None:
        write_json(folder / RESULT, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"plan": self.plan.to_dict()}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        return cls(**saved | {"plan": HardwarePlan.from_dict(saved["plan"])})


def _over_all(history: list[dict[str, Any]], name: str) -> float:
    """The mean over the time of all epochs."""
    seconds = sum(row["seconds"] for row in history)
    return sum(row[name] * row["seconds"] for row in history) / max(1e-9, seconds)
