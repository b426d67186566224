from tests.patterns.training.conftest import photos, trained

__all__ = ["photos", "trained"]
