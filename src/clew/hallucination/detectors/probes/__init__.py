"""Detection methods fitted with NumPy and scikit-learn: baselines, scores without training, and
probes. They are the reference points of every comparison."""
