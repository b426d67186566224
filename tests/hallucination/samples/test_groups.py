"""Groups of given answers, such as documents, are never split."""

from pathlib import Path

import numpy as np
import pytest

from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.preprocess import preprocess_store
from clew.hallucination.samples.splits import assign_folds, assign_splits, name_groups, read_splits
from clew.loading.splits import Shares
from tests.hallucination.samples.trace_stores import rewrite_rows, tiny_preprocess

IDS = [f"q{number}" for number in range(600)]
LABELS = np.arange(600) % 3 == 0
GROUPS = [f"document {number // 6}" for number in range(600)]


def splits_of(groups: list[str], splits: np.ndarray) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for group, split in zip(groups, splits.tolist(), strict=True):
        found.setdefault(group, set()).add(split)
    return found


def test_groups_are_in_one_split_and_stay_there_when_answers_are_added() -> None:
    same = ["Summarize the text."] * 600  # would be one question
    whole = assign_splits(IDS, same, LABELS, shares=Shares(), groups=GROUPS)
    assert all(len(one) == 1 for one in splits_of(GROUPS, whole).values())
    np.testing.assert_allclose(np.bincount(whole) / 600, [0.7, 0.15, 0.15], atol=0.03)
    part = assign_splits(IDS[:301], same[:301], LABELS[:301], shares=Shares(), groups=GROUPS[:301])
    np.testing.assert_array_equal(whole[:300], part[:300])
    names = ("train", "validation", "test")
    before = {name: names[split] for name, split in zip(IDS[:301], part.tolist(), strict=True)}
    grown = assign_splits(IDS, same, LABELS, shares=Shares(), groups=GROUPS, previous=before)
    assert all(len(one) == 1 for one in splits_of(GROUPS, grown).values())
    np.testing.assert_array_equal(grown[:301], part)


def test_folds_keep_groups_together() -> None:
    folds = assign_folds(IDS, None, LABELS.astype(float), folds=5, groups=GROUPS)
    assert all(len(one) == 1 for one in splits_of(GROUPS, folds).values())
    assert np.bincount(folds).tolist() == [120] * 5


def test_answers_without_a_group_go_by_question_and_source() -> None:
    named = name_groups([None, None, None, "d", None], ["Q"] * 5, ["A", "B", "A", "A", None])
    assert named[0] == named[2] != named[1]
    assert named[3:] == ["d", None]


@pytest.mark.slow
def test_samples_are_split_by_the_groups_of_the_store(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    groups = [f"d{number // 5}" for number in range(70)]
    store = rewrite_rows(compact_store, tmp_path / "traces", 20, group=groups)
    preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"))
    splits = read_splits(tmp_path / "out" / "splits.csv").split
    data = AnswerFeatures(tmp_path / "out")
    stored = data.read_rows("group", np.arange(70))
    assert all(len(one) == 1 for one in splits_of(stored, splits).values())
    assert sorted(set(stored)) == sorted(set(groups))
