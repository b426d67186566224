"""Draws the answers that the report of a comparison lists as mistakes, for the report to link."""

import logging
from pathlib import Path

from clew.base.errors import ClewError
from clew.base.progress import Reporter, WorkAdvanced, WorkStarted, log_event, report_work
from clew.hallucination.answer_page.run import GENERATOR, ShowConfig, show_answer
from clew.hallucination.answer_page.source import find_scores, find_traces
from clew.hallucination.comparison.report.answers import (
    ANSWERS_FOLDER,
    answer_page_path,
    listed_mistakes,
)
from clew.hallucination.comparison.report.comparison import read_comparison

logger = logging.getLogger(__name__)


def show_mistakes(
    folder: Path, preprocessed_dir: Path, reporter: Reporter | None = None
) -> list[Path]:
    """Write a page per mistake into the comparison's folder; call it before `write_report`, which
    links the pages that exist.

    `preprocessed_dir` holds the samples that were tested on. The traces they were made from are
    looked for nearby; without them, there are no pages. An answer that cannot be drawn is logged
    and skipped. Raises StoreError when the folder holds no finished comparison."""
    _remove_old(folder / ANSWERS_FOLDER)
    numbers = listed_mistakes(read_comparison(folder))
    traces, scores = find_traces(preprocessed_dir), find_scores(preprocessed_dir)
    if traces is None or not numbers:
        return []
    reporter = reporter or log_event
    drawn: list[Path] = []
    with report_work(reporter, WorkStarted(noun="answer pages", planned=len(numbers))):
        for number in numbers:
            config = ShowConfig(
                store=traces,
                answer=str(number),
                out=(folder / answer_page_path(number),),
                scores_file=scores,
                comparison=folder,
            )
            drawn += _show(config)
            reporter(WorkAdvanced())
    return drawn


def _show(config: ShowConfig) -> tuple[Path, ...]:
    try:
        return show_answer(config).paths
    except ClewError as error:
        logger.warning("answer %s has no page: %s", config.answer, error)
        return ()


def _remove_old(folder: Path) -> None:
    """Remove the pages of an earlier comparison, which show other risks."""
    for page in folder.glob("answer-*.html"):
        if GENERATOR.encode() in page.read_bytes()[:2048]:
            page.unlink()
