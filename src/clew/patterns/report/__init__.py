"""report.html of a training or an evaluation; nothing is fitted here."""

from clew.patterns.report.page import REPORT_FILE, write_report

__all__ = ["REPORT_FILE", "write_report"]
