"""Hallucination detection: from questions to detectors, one folder per step."""
