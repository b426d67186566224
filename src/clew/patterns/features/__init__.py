"""Features of photos from the pretrained network: computed once, kept in Arrow shards."""

from clew.patterns.features.compute import FeatureSettings, PhotoFeatures, compute_features

__all__ = ["FeatureSettings", "PhotoFeatures", "compute_features"]
