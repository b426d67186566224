"""One training loop for every model: it plans how to use the hardware, and can always resume."""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names
from clew.base.progress import Event, Note, Reporter
from clew.engine.classifier import BinaryLoss, CategoricalLoss, Classifier
from clew.engine.config import (
    Batches,
    LoadSettings,
    OpenBatches,
    PlanRequest,
    StepOutput,
    Trainable,
    TrainConfig,
)
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

if TYPE_CHECKING:
    from clew.loading.loader import Loader

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
__getattr__, __dir__ = lazy_names(__name__, {"Loader": ".loading.loader"})
