"""Statistics for tables that hold up in peer review. Label 1 is the positive class, and a higher
score means more likely positive."""
