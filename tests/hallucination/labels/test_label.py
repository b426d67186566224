"""Labeling a store: the scores file, excluded answers, examples, and existing files."""

from pathlib import Path

import pytest

from clew.errors import InputError, StoreError
from clew.hallucination.labels import read_scores
from clew.hallucination.labels.label import label_store
from clew.storage.text_files import read_csv
from tests.hallucination.labels.text_stores import trace_row, write_text_store
from tests.stores import write_store

HEADER = "question_id,global_example_id,score,method,answer,accepted_answer\n"


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
        "q0,0,1.0,alias,Café,cafe\n"
        "q1,1,0.0,alias,,x\n"
        'q4,4,0.0,alias,"Oslo, of course",Bergen\n'
        "q5,5,1.0,alias,It is Rome,Rome\n"
    )


def test_texts_with_quotes_and_newlines_survive_a_round_trip(tmp_path: Path, out: Path) -> None:
    texts = ['say "x", or\ny', "a\rb", "=1+1", "\x00", "東京\u2028", "  "]
    rows = [trace_row(i, text, ["z"], question_id=f"00{i}") for i, text in enumerate(texts)]
    label_store(write_text_store(tmp_path / "store", rows), out)
    assert [row["answer"] for row in read_csv(out)] == texts
    scores = read_scores(out)
    assert scores.scores == {f"00{i}": 0.0 for i in range(6)}
    assert scores.notes == ()


def test_answers_to_the_same_question_have_separate_scores(tmp_path: Path, out: Path) -> None:
    rows = [
        trace_row(i, text, ["Rome"], question_id="q") for i, text in enumerate(["Rome", "Oslo"])
    ]
    label_store(write_text_store(tmp_path / "store", rows), out)
    assert read_scores(out).match(["q", "q"], [1, 0]).tolist() == [0.0, 1.0]


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
    assert read_scores(out).scores["q1"] == 1.0


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
