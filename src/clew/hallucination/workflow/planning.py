"""How training would use this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clew.base.commands import TrainingHardware, select, takes

if TYPE_CHECKING:
    from clew.hallucination.workflow.results import Plans


@dataclass(frozen=True, kw_only=True)
class PlanSettings(TrainingHardware):
    """What `plan` takes.

    Args:
        preprocessed_dir: Folder of samples to benchmark on, written by "clew preprocess".
        epochs: Number of epochs of the planned run.
    """

    preprocessed_dir: str | Path | None = None
    epochs: int = 50


@takes(PlanSettings)
def plan(given: PlanSettings) -> "Plans":
    """Show how training would use this machine (device, precision, batch size, ...), and why.

    With samples, each network is benchmarked on them for a few seconds, as "clew train" does at
    startup. Without samples, the plan shows which choices would be measured.

    Returns:
        `machine`, and `plans`: one `HardwarePlan` per network (with samples) or for "all networks",
        with a reason for every choice.

    Raises:
        InputError: The samples or a setting cannot be used.

    Examples:
        >>> clew.plan().plans["all networks"].reasons["precision"]
    """
    from clew.engine import PlanRequest, TrainConfig, plan_hardware
    from clew.engine.plan import look_at_machine
    from clew.hallucination.workflow.results import Plans

    machine, config = look_at_machine(), TrainConfig(epochs=given.epochs)
    request = select(PlanRequest, given)
    if given.preprocessed_dir is None:
        made = plan_hardware(request, config=config, machine=machine)
        return Plans(machine=machine, plans={"all networks": made})
    from clew.hallucination.detectors.training.settings import TrainRunConfig
    from clew.hallucination.detectors.training.train import plan_models

    folder = Path(given.preprocessed_dir)
    plans = plan_models(TrainRunConfig(preprocessed_dir=folder, train=config, request=request))
    return Plans(machine=machine, plans=plans)
