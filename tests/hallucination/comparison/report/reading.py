"""The page of a comparison, read."""

from pathlib import Path

from clew.hallucination.comparison.report.comparison import read_comparison
from clew.hallucination.comparison.report.page import make_page
from tests.pages.reading import Page


def read_page(folder: Path) -> Page:
    """Without the pictures beside it: these take seconds."""
    return Page(make_page(read_comparison(folder)))
