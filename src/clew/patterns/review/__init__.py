"""A person looks at doubtful photos: approves or corrects the model's guess; the next training
learns from it. At the terminal, or on a page that only this machine can reach."""

from clew.patterns.review.prepare import ReviewConfig, open_review
from clew.patterns.review.session import Review

__all__ = ["Review", "ReviewConfig", "open_review"]
