"""Which sample belongs to training, validation or test: decided by question, for good."""

from clew.splits.assign import assign_splits, group_questions
from clew.splits.byfile import FileSplits, assign_splits_by_file, count_files
from clew.splits.shares import SPLIT_NAMES, Shares, parse_split
from clew.splits.table import (
    SPLITS_FILE,
    Splits,
    count_labels,
    find_thin_splits,
    read_splits,
    write_splits,
)

__all__ = [
    "SPLITS_FILE",
    "SPLIT_NAMES",
    "FileSplits",
    "Shares",
    "Splits",
    "assign_splits",
    "assign_splits_by_file",
    "count_files",
    "count_labels",
    "find_thin_splits",
    "group_questions",
    "parse_split",
    "read_splits",
    "write_splits",
]
