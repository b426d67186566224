"""report.html and its figures from a finished comparison folder; nothing is fitted here."""

from clew.hallucination.comparison.report.page import FIGURES_FOLDER, REPORT_FILE, write_report

__all__ = ["FIGURES_FOLDER", "REPORT_FILE", "write_report"]
