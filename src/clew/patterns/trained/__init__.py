"""A trained image classifier, ready for use."""

from clew.patterns.trained.model import PatternModel, Prediction, load_classifier, predict_photos

__all__ = ["PatternModel", "Prediction", "load_classifier", "predict_photos"]
