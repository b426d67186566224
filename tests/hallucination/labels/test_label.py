"""Labeling a store: the scores file, excluded answers, examples, and existing files."""

from pathlib import Path

import pytest

from clew.base.errors import InputError, StoreError
from clew.hallucination.labels import read_scores
from clew.hallucination.labels.label import label_store
from clew.storage.text_files import csv_text, read_csv
from tests.hallucination.labels.text_stores import trace_row, write_text_store
from tests.stores import write_store

HEADER = (
    "question_id,global_example_id,score,method,reason,correction,category,question,answer,"
    "accepted_answer,accepted_answers\n"
)
OLD_HEADER = "question_id,global_example_id,score,method,answer,accepted_answer\n"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "scores.csv"


def test_scores_file_has_one_row_per_answer_in_the_order_of_the_ids(
    tmp_path: Path, out: Path
) -> None:
    rows = [
        trace_row(5, "It is Rome", ["Roma", "Rome"]),
        trace_row(4, "Oslo, of course", ["Bergen"]),
        trace_row(1, None, ["x"]),
        trace_row(0, "Café", ["cafe"]),
    ]
    label_store(write_text_store(tmp_path / "store", rows), out)
    assert out.read_text(encoding="utf-8") == HEADER + (
        "q0,0,1.0,alias,equal,,,What is 0?,Café,cafe,cafe\n"
        "q1,1,0.0,alias,empty,,,What is 1?,,x,x\n"
        'q4,4,0.0,alias,absent,,,What is 4?,"Oslo, of course",Bergen,Bergen\n'
        "q5,5,1.0,alias,stated,,,What is 5?,It is Rome,Rome,Roma | Rome\n"
    )


def test_refusals_have_no_score_and_are_counted_apart(tmp_path: Path, out: Path) -> None:
    texts = ["Rome", "Oslo", "I don't know."]
    rows = [trace_row(i, text, ["Rome"], category="capital") for i, text in enumerate(texts)]
    result = label_store(write_text_store(tmp_path / "store", rows), out)
    assert (result.correct, result.hallucinated, result.refused) == (1, 1, 1)
    assert [row["score"] for row in read_csv(out)] == ["1.0", "0.0", ""]
    (share,) = result.categories
    assert (share.answers, share.hallucinated, share.refused) == (2, 1, 1)
    scores = read_scores(out)
    assert scores.labels == {("q0", 0): 1.0, ("q1", 1): 0.0, ("q2", 2): "refused"}


def correct(out: Path, answers: dict[str, str]) -> None:
    """Write a person's corrections into a scores file, by question."""
    rows = [row | {"correction": answers.get(row["question_id"], "")} for row in read_csv(out)]
    out.write_text(csv_text([list(rows[0]), *(list(row.values()) for row in rows)]), "utf-8")


def test_corrections_win_and_are_kept_when_labeling_again(tmp_path: Path, out: Path) -> None:
    store = write_text_store(tmp_path / "store", [trace_row(i, "x", ["x"]) for i in range(5)])
    label_store(store, out)
    correct(out, {"q0": "hallucinated", "q1": "Refused", "q2": "exclude", "q3": "1"})
    result = label_store(store, out, overwrite=True)
    assert (result.corrected, result.correct, result.hallucinated, result.refused) == (4, 2, 1, 1)
    scores = read_scores(out)
    labels = [0.0, "refused", "excluded", 1.0, 1.0]
    assert scores.labels == {(f"q{i}", i): label for i, label in enumerate(labels)}
    assert not label_store(store, out).written


def test_corrections_of_other_answers_are_dropped_and_counted(tmp_path: Path, out: Path) -> None:
    for name, answer in (("one", "x"), ("two", "y")):
        store = write_text_store(tmp_path / name, [trace_row(0, answer, ["x"])])
        result = label_store(store, out, overwrite=True)
        correct(out, {"q0": "hallucinated"})
    assert (result.corrected, result.lost_corrections) == (0, 1)


def test_unknown_correction_is_rejected_with_its_line(tmp_path: Path, out: Path) -> None:
    label_store(write_text_store(tmp_path / "store", [trace_row(0, "x", ["x"])]), out)
    correct(out, {"q0": "maybe"})
    with pytest.raises(InputError, match='line 2: the correction "maybe" is not known'):
        read_scores(out)


def test_file_of_an_earlier_version_is_read_and_brought_up_to_date(
    tmp_path: Path, out: Path
) -> None:
    store = write_text_store(tmp_path / "store", [trace_row(0, "It is Rome", ["Rome"])])
    out.write_text(f"{OLD_HEADER}q0,0,1.0,alias,It is Rome,Rome\n")
    assert read_scores(out).answers == {("q0", 0): "It is Rome"}
    assert label_store(store, out).written
    assert out.read_text().startswith(HEADER)


def test_texts_with_quotes_and_newlines_survive_a_round_trip(tmp_path: Path, out: Path) -> None:
    texts = ['say "x", or\ny', "a\rb", "=1+1", "\x00", "東京\u2028", "  "]
    rows = [trace_row(i, text, ["z"], question_id=f"00{i}") for i, text in enumerate(texts)]
    label_store(write_text_store(tmp_path / "store", rows), out)
    assert [row["answer"] for row in read_csv(out)] == texts
    scores = read_scores(out)
    assert scores.labels == {(f"00{i}", i): 0.0 for i in range(6)}
    assert scores.notes == ()


def test_answers_to_the_same_question_have_separate_scores(tmp_path: Path, out: Path) -> None:
    rows = [
        trace_row(i, text, ["Rome"], question_id="q") for i, text in enumerate(["Rome", "Oslo"])
    ]
    label_store(write_text_store(tmp_path / "store", rows), out)
    assert read_scores(out).find(["q", "q"], [1, 0]) == [0.0, 1.0]


def test_answers_without_accepted_answers_are_excluded_and_listed(
    tmp_path: Path, out: Path
) -> None:
    rows = [trace_row(i, "x", accepted) for i, accepted in enumerate([["x"], [], None, [" "]])]
    result = label_store(write_text_store(tmp_path / "store", rows), out)
    assert result.excluded == ["q1", "q2", "q3"]
    assert [row.question_id for row in result.rows] == ["q0"]


def test_store_without_accepted_answers_is_rejected(tmp_path: Path, out: Path) -> None:
    store = write_text_store(tmp_path / "store", [trace_row(0, "x", None)])
    with pytest.raises(InputError, match="none of the 1 answers .* with the columns question_id"):
        label_store(store, out)
    assert not out.exists()


def test_store_of_another_kind_is_rejected(tmp_path: Path, out: Path) -> None:
    with pytest.raises(StoreError, match="contains samples, not traces"):
        label_store(write_store(tmp_path / "store"), out)


def test_store_without_a_finished_batch_is_rejected(tmp_path: Path, out: Path) -> None:
    with pytest.raises(InputError, match="has no finished shard yet"):
        label_store(write_text_store(tmp_path / "store", []), out)


def test_labeling_again_changes_nothing_and_keeps_an_edited_file(tmp_path: Path, out: Path) -> None:
    store = write_text_store(tmp_path / "store", [trace_row(i, "x", ["x"]) for i in range(3)])
    assert label_store(store, out).written
    assert not label_store(store, out).written
    edited = out.read_bytes().replace(b"q1,1,1.0", b"q1,1,0.0")
    out.write_bytes(edited)
    with pytest.raises(InputError, match=r"from line 3 on\): .*another `out`, .*`overwrite=True`"):
        label_store(store, out)
    assert out.read_bytes() == edited
    assert label_store(store, out, overwrite=True).written
    assert read_scores(out).labels["q1", 1] == 1.0


def test_hallucinated_answers_are_counted_by_threshold_and_category(
    tmp_path: Path, out: Path
) -> None:
    rows = [
        trace_row(0, "red", ["red"], category="colour"),
        trace_row(1, "red blue", ["red"], category="colour"),
        trace_row(2, "four", ["five"]),
    ]
    store = write_text_store(tmp_path / "store", rows)
    result = label_store(store, out, method="token-f1", score_threshold=0.7)
    assert [row.score for row in result.rows] == [1.0, 0.666667, 0.0]
    assert (result.hallucinated, result.hallucinated_share) == (2, pytest.approx(2 / 3))
    shares = [(share.category, share.answers, share.hallucinated) for share in result.categories]
    assert shares == [("(none)", 1, 1), ("colour", 2, 1)]


def test_doubtful_examples_are_long_or_near_matches(tmp_path: Path, out: Path) -> None:
    long = "It could well be that somebody somewhere in Rome knows it"
    texts = ["Rome", "Rome", long, "Oslo", "New Rom", "Oslo"]
    rows = [trace_row(i, text, ["Rome", "New Rome"]) for i, text in enumerate(texts)]
    rows[4]["accepted_answers"] = ["New York"]
    rows[5]["accepted_answers"] = ["s"]  # too short for a near match
    examples = label_store(write_text_store(tmp_path / "store", rows), out).examples
    assert [row.answer for row in examples.doubtful] == [long, "New Rom"]
    assert [row.answer for row in examples.correct] == ["Rome", "Rome"]
    assert [row.answer for row in examples.hallucinated] == ["Oslo", "Oslo"]


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.5, float("nan")])
def test_invalid_threshold_is_rejected(tmp_path: Path, out: Path, threshold: float) -> None:
    with pytest.raises(InputError, match="^score_threshold is .*: it must be greater than 0"):
        label_store(tmp_path, out, score_threshold=threshold)


def test_folder_as_output_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="^out is .*: this is a folder. Give the file"):
        label_store(tmp_path, tmp_path)


def test_unknown_method_is_rejected(tmp_path: Path, out: Path) -> None:
    with pytest.raises(InputError, match='^method is "bleu": choose from: alias, exact'):
        label_store(tmp_path, out, method="bleu")  # type: ignore[arg-type]
