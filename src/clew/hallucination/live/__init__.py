"""Use a detector: generate answers in one continuous batch and score them, or score answers that
exist already."""
