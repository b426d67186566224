"""A person looks at answers whose labels are doubtful, and corrects them, on a page that only this
machine can reach; the scores file has the result."""

from clew.hallucination.labels.review.asking import run_review
from clew.hallucination.labels.review.session import LabelReview, open_review

__all__ = ["LabelReview", "open_review", "run_review"]
