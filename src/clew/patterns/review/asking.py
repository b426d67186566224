"""Runs a review in the terminal or in the browser, until the person ends it."""

import logging
import sys
import webbrowser
from dataclasses import dataclass

from clew.base.terminal import TextConsole
from clew.patterns.library.choose import Chosen
from clew.patterns.review.app import open_page
from clew.patterns.review.keys import open_keys
from clew.patterns.review.prepare import ReviewConfig, open_review
from clew.patterns.review.session import Review
from clew.patterns.review.terminal import Dialogue

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReviewResult:
    """The decisions of a review: `counts` of approved, corrected and skipped photos, `left` the
    number not yet reviewed, `folder` where the photos were put."""

    counts: dict[str, int]
    left: int
    folder: str


def run_review(
    chosen: Chosen,
    config: ReviewConfig,
    *,
    web: bool = False,
    port: int = 0,
    browser: bool = True,
) -> ReviewResult:
    """Ask a person, in the terminal or in the browser. Raises what `open_review` does."""
    with open_review(chosen, config) as opened:
        if opened.queue.questions and web:
            _serve(opened, port, browser)
        elif opened.queue.questions:
            _ask(opened)
        left = len(opened.queue.questions) - opened.place
        return ReviewResult(counts=dict(opened.counts()), left=left, folder=opened.folder)


def _ask(opened: Review) -> None:
    console = TextConsole(soft_wrap=True)
    Dialogue(console, opened, open_keys(sys.stdin, console.print)).run()


def _serve(opened: Review, port: int, browser: bool) -> None:
    with open_page(opened, port) as server:
        logger.info("review page: %s", server.address)
        if browser:
            webbrowser.open(server.address)
        server.run()
