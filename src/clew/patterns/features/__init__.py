"""Features of photos from the pretrained network: computed once, kept in Arrow shards."""

from clew.patterns.features.compute import FeatureSettings, PhotoFeatures, compute_features
from clew.patterns.features.fitting import FeaturePlan, fit_on_features, plan_features

__all__ = [
    "FeaturePlan",
    "FeatureSettings",
    "PhotoFeatures",
    "compute_features",
    "fit_on_features",
    "plan_features",
]
