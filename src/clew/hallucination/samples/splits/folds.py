"""Folds for cross-validation: by question, with both classes in proportion."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from clew.base.errors import InputError
from clew.hallucination.samples.splits.assign import group_questions, hash_place


def assign_folds(
    question_ids: Sequence[str],
    questions: Sequence[str | None] | None,
    labels: np.ndarray,
    *,
    folds: int,
) -> Int[np.ndarray, " rows"]:
    """The fold of every row, from 0. Rows of one question stay together; each class is dealt out in
    the order of a hash. Raises InputError if a class has fewer questions than there are folds."""
    groups = group_questions(question_ids, questions)
    _, firsts = np.unique(groups, return_index=True)
    chosen = np.zeros(len(firsts), np.int64)
    dealt = 0
    for kind, name in enumerate(("correct", "hallucinated")):
        ours = np.flatnonzero((labels[firsts] > 0.5) == bool(kind))
        if len(ours) < folds:
            raise InputError(
                f"there are {len(ours):,} questions with {name} answers, but every fold must have "
                "one or more: give fewer folds, or use more questions.",
                setting="folds",
                value=folds,
            )
        places = {group: hash_place(question_ids[int(firsts[group])]) for group in ours.tolist()}
        order = sorted(places, key=lambda group: places[group])
        chosen[order] = (np.arange(len(order)) + dealt) % folds
        dealt += len(order)
    return chosen[groups]
