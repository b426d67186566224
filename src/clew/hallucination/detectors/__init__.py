"""Hallucination detectors: probes, networks, their training and the files they are kept in."""
