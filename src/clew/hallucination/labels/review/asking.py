"""Runs a review on a page, until the person ends it."""

import logging
import webbrowser
from pathlib import Path

from clew.hallucination.labels.review.app import open_page
from clew.hallucination.labels.review.session import open_review

logger = logging.getLogger(__name__)


def run_review(
    path: Path, *, score_threshold: float = 0.5, port: int = 0, browser: bool = True
) -> dict[str, int]:
    """Let a person review the labels of a scores file, in the browser. Returns how many answers
    were put into each class, excluded and skipped. Raises what `open_review` does."""
    with open_review(path, score_threshold) as review, open_page(review, port) as server:
        logger.info("review page: %s", server.address)
        if browser:
            webbrowser.open(server.address)
        server.run()
        return dict(review.counts())
