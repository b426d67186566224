"""Samples for PyTorch: order, resume, streams, map-style datasets and the fast loader."""
