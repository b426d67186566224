"""A review of labels: the order, decisions that are saved at once, and files that change."""

from pathlib import Path

import pytest

from clew.base.errors import InputError, StoreLockedError
from clew.hallucination.labels import read_scores
from clew.hallucination.labels.label import label_store
from clew.hallucination.labels.review import LabelReview, open_review
from clew.storage.text_files import read_csv
from tests.hallucination.labels.text_stores import trace_row, write_text_store


def corrections(scores: Path) -> dict[str, str]:
    return {row["question_id"]: row["correction"] for row in read_csv(scores) if row["correction"]}


def test_doubtful_answers_come_first_and_say_why(review: LabelReview) -> None:
    shown = [(one.row.question_id, one.label, one.doubt.about) for one in review.queue]
    assert shown[:3] == [
        ("q1", "hallucinated", "it names several"),
        ("q3", "hallucinated", 'it shares words with "New Rome"'),
        ("q2", "refused", "it declines to answer"),
    ]
    assert (review.doubtful, len(review.queue)) == (3, 5)


def test_every_decision_is_in_the_file_at_once_and_can_be_undone(
    review: LabelReview, scores: Path
) -> None:
    review.decide("excluded")
    assert corrections(scores) == {"q1": "excluded"}
    review.decide("correct")
    review.keep()
    assert corrections(scores) == {"q1": "excluded", "q3": "correct", "q2": "refused"}
    review.skip()
    for _ in range(3):
        review.undo()
    assert corrections(scores) == {"q1": "excluded"} and review.place == 1
    labels = read_scores(scores).labels
    assert (labels["q1", 1], labels["q2", 2]) == ("excluded", "refused")
    review.undo()
    with pytest.raises(InputError, match="there is nothing to undo"):
        review.undo()


def test_next_review_shows_only_what_is_left(review: LabelReview, scores: Path) -> None:
    review.decide("correct")
    review.skip()
    with (
        pytest.raises(StoreLockedError, match="another review of .* is running"),
        open_review(scores),
    ):
        pass
    assert [one.row.question_id for one in review.queue][review.place :] == ["q2", "q0", "q4"]


def test_file_that_changed_meanwhile_is_not_overwritten(review: LabelReview, scores: Path) -> None:
    scores.write_text(scores.read_text().replace("Oslo", "Bergen"))
    before = scores.read_bytes()
    with pytest.raises(InputError, match="was changed by something else. Nothing was saved"):
        review.decide("correct")
    assert (scores.read_bytes(), review.place) == (before, 0)


def test_columns_that_a_person_added_stay(scores: Path) -> None:
    lines = scores.read_text().splitlines()
    scores.write_text("\n".join([f"{lines[0]},note", *(f"{line},mine" for line in lines[1:])]))
    with open_review(scores) as review:
        review.decide("correct")
    assert {row["note"] for row in read_csv(scores)} == {"mine"}


def test_scores_of_other_tools_cannot_be_reviewed(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_text("question_id,score\nq,1\n")
    with pytest.raises(InputError, match="has no column for corrections"), open_review(file):
        pass


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("q1,1,0.0", "q1,x,0.0", 'line 3: global_example_id "x" is not an integer'),
        ("q1,1,0.0", "q1,1,no", 'line 3: score "no" is not a number'),
        ("one of several,", "one of several,maybe", 'line 3: the correction "maybe" is not known'),
    ],
)
def test_files_that_were_edited_wrongly_are_rejected_with_the_line(
    scores: Path, before: str, after: str, message: str
) -> None:
    scores.write_text(scores.read_text().replace(before, after))
    with pytest.raises(InputError, match=message), open_review(scores):
        pass


def test_answers_without_any_label_wait_for_a_person(tmp_path: Path) -> None:
    rows = [trace_row(0, "Rome", ["Rome"]), trace_row(1, "Oslo", []), trace_row(2, "Bonn", [])]
    store, scores = write_text_store(tmp_path / "store", rows), tmp_path / "scores.csv"
    found = label_store(store, scores, keep_unlabeled=True)
    assert [row.label(0.5) for row in found.rows] == ["correct", "excluded", "excluded"]
    with open_review(scores, only=[2]) as review:
        review.decide("hallucinated")
        assert review.current is None
    again = label_store(store, scores, overwrite=True)
    assert [row.correction for row in again.rows] == [None, "hallucinated"]
    assert again.excluded == ["q1"]
