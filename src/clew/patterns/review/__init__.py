"""A person looks at doubtful photos and approves or corrects the model's guess; the next training
run uses the result. At the terminal, or on a page that only this machine can reach."""

from clew.patterns.review.review import open_review, run_review
from clew.patterns.review.session import Review

__all__ = ["Review", "open_review", "run_review"]
