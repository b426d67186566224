"""One training loop for every model: it plans for the machine, trains, and can always go on."""

from clew.engine.classifier import BinaryLoss, CategoricalLoss, Classifier
from clew.engine.config import PlanRequest, TrainConfig
from clew.engine.events import EpochEnded, TrainingEnded, TrainingProgress, TrainingStarted
from clew.engine.planning.plan import HardwarePlan
from clew.engine.planning.planner import plan_hardware
from clew.engine.protocols import Batches, LoadSettings, OpenBatches, StepOutput, Trainable
from clew.engine.state import FitResult
from clew.engine.trainer import fit
from clew.progress import Event, Note, Reporter

__all__ = [
    "Batches",
    "BinaryLoss",
    "CategoricalLoss",
    "Classifier",
    "EpochEnded",
    "Event",
    "FitResult",
    "HardwarePlan",
    "LoadSettings",
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
