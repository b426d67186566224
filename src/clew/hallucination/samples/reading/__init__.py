"""PyTorch datasets over sample stores; `clew.datasets` is the public front."""
