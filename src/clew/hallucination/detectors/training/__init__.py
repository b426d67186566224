"""Train detectors: samples, settings, seeds and results."""
