"""Photos in folders: a classifier trained on them, put to use, and corrected."""
