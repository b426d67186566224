# ruff: noqa: F401 - the imports for type checkers
"""One training loop for every model: it plans how to use the hardware, and can always resume.
Names that load PyTorch are imported on first use."""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names
from clew.base.progress import Event, Note, Reporter
from clew.engine.config import (
    Batches,
    LoadSettings,
    OpenBatches,
    PlanRequest,
    StepOutput,
    Trainable,
    TrainConfig,
)

if TYPE_CHECKING:  # the names of `_HOMES`
    from clew.engine.classifier import BinaryLoss, CategoricalLoss, Classifier
    from clew.engine.plan import HardwarePlan
    from clew.engine.planner import plan_hardware
    from clew.engine.state import (
        EpochEnded,
        FitResult,
        ModelMeasured,
        TrainingEnded,
        TrainingProgress,
        TrainingStarted,
    )
    from clew.engine.tracking import ExperimentLogger
    from clew.engine.trainer import fit
    from clew.loading.loader import Loader

_HOMES = {
    **dict.fromkeys(("BinaryLoss", "CategoricalLoss", "Classifier"), "classifier"),
    "HardwarePlan": "plan",
    "plan_hardware": "planner",
    **dict.fromkeys(
        (
            *("EpochEnded", "FitResult", "ModelMeasured"),
            *("TrainingEnded", "TrainingProgress", "TrainingStarted"),
        ),
        "state",
    ),
    "ExperimentLogger": "tracking",
    "fit": "trainer",
    "Loader": ".loading.loader",
}
__all__ = [
    "Batches",
    "BinaryLoss",
    "CategoricalLoss",
    "Classifier",
    "EpochEnded",
    "Event",
    "ExperimentLogger",
    "FitResult",
    "HardwarePlan",
    "LoadSettings",
    "Loader",
    "ModelMeasured",
    "Note",
    "OpenBatches",
    "PlanRequest",
    "Reporter",
    "StepOutput",
    "TrainConfig",
    "Trainable",
    "TrainingEnded",
    "TrainingProgress",
    "TrainingStarted",
    "fit",
    "plan_hardware",
]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
