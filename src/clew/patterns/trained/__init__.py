"""A trained model of patterns, ready for use."""

from clew.patterns.trained.model import PatternModel, load_model
from clew.patterns.trained.predict import Prediction, predict_photos

__all__ = ["PatternModel", "Prediction", "load_model", "predict_photos"]
