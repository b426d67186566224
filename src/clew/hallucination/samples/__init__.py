"""Training samples: made from traces and labels, split by question, read as PyTorch datasets."""
