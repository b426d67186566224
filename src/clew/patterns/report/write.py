"""Writes report.html into the folder of a training or an evaluation."""

import logging
from pathlib import Path

from clew.errors import ClewError
from clew.patterns.report.page import make_page
from clew.patterns.report.pictures import Looking
from clew.patterns.report.run import Run, read_run
from clew.patterns.trained.gradcam import check_maps
from clew.patterns.trained.model import load_model
from clew.storage.writing import replace_file

REPORT_FILE = "report.html"

logger = logging.getLogger(__name__)


def write_report(folder: Path, *, device: str | None = None) -> Path:
    """The path of the page: one file that can be sent.

    Raises StoreError when the folder holds no finished training or evaluation."""
    run = read_run(Path(folder))
    page = make_page(run, _load(run, device))
    path = run.folder / REPORT_FILE
    # Half a surrogate pair, which a file's name may hold, has no bytes: it becomes a question mark.
    replace_file(path, page.encode("utf-8", errors="replace"))
    logger.info("wrote %s", path)
    return path


def _load(run: Run, device: str | None) -> Looking:
    """A model that has gone since, or has no feature maps, costs the heat maps alone; the page says
    so."""
    try:
        model = load_model(run.model_folder, device)
        check_maps(model)
    except ClewError as error:
        logger.warning("no heat maps in the report: %s", error)
        return Looking(fault=str(error))
    return Looking(model=model)
