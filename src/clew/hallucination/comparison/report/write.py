"""Writes report.html and figures/ into a comparison folder."""

import logging
from pathlib import Path

from clew.hallucination.comparison.report.comparison import read_comparison
from clew.hallucination.comparison.report.page import make_page
from clew.hallucination.comparison.report.pictures import PICTURES, draw_pictures
from clew.storage.writing import replace_file

REPORT_FILE, FIGURES_FOLDER = "report.html", "figures"

logger = logging.getLogger(__name__)


def write_report(folder: Path) -> Path:
    """The path of the page. It is one file that can be sent; the PNGs beside it are the same
    figures for slides and papers.

    Raises StoreError when the folder holds no finished comparison."""
    comparison = read_comparison(folder)
    pictures = draw_pictures(comparison)
    _write_pictures(folder / FIGURES_FOLDER, pictures)
    page = make_page(comparison, list(pictures))
    # Half a surrogate pair, which JSON may hold, has no bytes: it becomes a question mark.
    replace_file(folder / REPORT_FILE, page.encode("utf-8", errors="replace"))
    logger.info("wrote %s and %d pictures", folder / REPORT_FILE, len(pictures))
    return folder / REPORT_FILE


def _write_pictures(folder: Path, pictures: dict[str, bytes]) -> None:
    """Those of an earlier report that this one has not are taken away."""
    folder.mkdir(exist_ok=True)
    for name in PICTURES:
        if name not in pictures:
            (folder / f"{name}.png").unlink(missing_ok=True)
    for name, image in pictures.items():
        replace_file(folder / f"{name}.png", image)
