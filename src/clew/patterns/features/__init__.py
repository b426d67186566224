"""Features of photos from the pretrained network: computed once, kept in Arrow shards, and trained
on where there is no GPU."""

from clew.patterns.features.compute import FeatureSettings, PhotoFeatures, compute_features
from clew.patterns.features.fitting import (
    FeaturePlan,
    FittedOnFeatures,
    fit_on_features,
    plan_features,
)
from clew.patterns.features.tuning_file import TUNING_FILE, TuningFile

__all__ = [
    "TUNING_FILE",
    "FeaturePlan",
    "FeatureSettings",
    "FittedOnFeatures",
    "PhotoFeatures",
    "TuningFile",
    "compute_features",
    "fit_on_features",
    "plan_features",
]
