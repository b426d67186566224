"""The public surface of the engine; the loader is imported on first use."""

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


def test_engine_and_datasets_export_the_same_loader() -> None:
    from clew.datasets import Loader

    assert front.Loader is Loader
