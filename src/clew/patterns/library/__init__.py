"""Named sets of patterns: their photos, their models, and how to choose one."""
