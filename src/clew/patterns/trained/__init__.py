"""A trained model of patterns, ready for use."""

from clew.patterns.trained.model import PatternModel, Prediction, load_classifier, predict_photos

__all__ = ["PatternModel", "Prediction", "load_classifier", "predict_photos"]
