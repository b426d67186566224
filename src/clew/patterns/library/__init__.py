"""Named sets of patterns: their photos, their models, and which one is meant."""
