"""Training samples: built from traces and labels, split by question, read as PyTorch datasets."""
