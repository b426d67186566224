"""The front of the engine: what is public, and that the loader comes when asked for."""

import clew.engine as front


def test_public_surface_is_exactly_what_is_documented() -> None:
    assert front.__all__ == [
        *("Batches", "BinaryLoss", "CategoricalLoss", "Classifier", "EpochEnded", "Event"),
        *("ExperimentLogger", "FitResult", "HardwarePlan", "LoadSettings", "Loader"),
        *("ModelMeasured", "Note", "OpenBatches", "PlanRequest", "Reporter", "StepOutput"),
        *("TrainConfig", "Trainable", "TrainingEnded", "TrainingProgress", "TrainingStarted"),
        *("fit", "plan_hardware"),
    ]
    assert all(hasattr(front, name) for name in front.__all__)


def test_loader_is_that_of_the_datasets() -> None:
    from clew.datasets import Loader

    assert front.Loader is Loader
