"""Assign samples to training, validation and test by question, permanently."""

from clew.hallucination.samples.splits.assign import (
    FileSplits,
    assign_splits,
    assign_splits_by_file,
    count_files,
    group_questions,
)
from clew.hallucination.samples.splits.folds import assign_folds
from clew.hallucination.samples.splits.table import (
    SPLITS_FILE,
    Splits,
    count_labels,
    find_thin_splits,
    read_splits,
    write_splits,
)

__all__ = [
    "SPLITS_FILE",
    "FileSplits",
    "Splits",
    "assign_folds",
    "assign_splits",
    "assign_splits_by_file",
    "count_files",
    "count_labels",
    "find_thin_splits",
    "group_questions",
    "read_splits",
    "write_splits",
]
