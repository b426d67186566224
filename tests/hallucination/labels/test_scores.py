"""Scores files of clew and of others: reading, inverting, rejecting and matching."""

from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.hallucination.labels import Scores, read_scores, require_scores
from clew.storage.reading import hash_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "scores.csv"


def read(file: Path, text: str | bytes, **options: object) -> Scores:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_scores(file, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "question_id,score\n007,0.25\nq2,1\n",
        "\ufeffquestion_id,score\r\n007,0.25\r\nq2,1\r\n",
        ' Question ID ,"Score"\n"007", 0.25 \n\nq2,1e0',
        'score,note,question_id\n0.25,"a, ""b""\n\nc",007\n1,,q2\n',
        "question_id,rating,answer\n007,0.25,x\nq2,1,7\n",
        "question_id,score,hallucination_score\n007,0.25,0.9\nq2,1,0.9\n",
    ],
    ids=["plain", "BOM and CRLF", "spaces", "quoted", "other name", "score first"],
)
def test_files_of_various_origins_are_read(file: Path, text: str) -> None:
    scores = read(file, text)
    assert scores.labels == {"007": 0.25, "q2": 1.0}
    assert (scores.has_examples, scores.notes) == (False, ())
    assert scores.sha256 == hash_file(file)


def test_hallucination_score_is_inverted_with_a_note(file: Path) -> None:
    text = "question_id,hallucination_score\nnq_0,0.637\n"
    scores = read(file, text)
    assert scores.labels["nq_0"] == pytest.approx(0.363)
    assert (
        "a higher hallucination_score is taken to mean more likely hallucinated" in scores.notes[0]
    )
    kept = read(file, text, higher_is="correct")
    assert (kept.labels, kept.notes) == ({"nq_0": 0.637}, ())


def test_score_column_and_direction_can_be_chosen(file: Path) -> None:
    scores = read(
        file, "question_id,a,b\nq,0.25,0.5\n", score_column=" B", higher_is="hallucinated"
    )
    assert scores.labels == {"q": 0.5}
    assert "1 - b" in scores.notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: its first line must name the columns"),
        ("question_id,score\n", "a header but no scores: label the store with clew.label"),
        ("id,score\nq,1\n", r'no column "question_id" \(found: id, score\)'),
        (
            "question_id,answer\nq,x\n",
            r'no column "score" and no other numeric column \(question_id',
        ),
        (
            "question_id,a,b\nq,1,1\n",
            r"several candidates \(a, b\): rename the one with the scores",
        ),
        ("question_id,score,score\nq,1,1\n", 'more than one column "score"'),
        ("question_id;score\nq;1;2\n", 'line 2: 3 values for 2 columns: .* contain ";" in'),
        (
            "question_id,score\nq,1\nr,yes\n",
            'line 3: score "yes" is not a number: give a number from 0 to 1',
        ),
        ("question_id,score\nq,nan\n", 'line 2: score "nan" is not a number'),
        ("question_id,score\nq,inf\n", 'line 2: score "inf" is not between 0 and 1: correct it'),
        ("question_id,score\nq,69.7\n", 'line 2: score "69.7" is not .* divide them by 100'),
        ("question_id,score\nq,-0.1\n", 'line 2: score "-0.1" is not between 0 and 1'),
        ("question_id,score\nq,\n", "line 2: .* is empty: fill it in or delete"),
        ("question_id,score\n ,1\n", "line 2: question_id is empty"),
        ('question_id,score,t\nq,1,"a\nb"\nr,x,y\n', "line 4: score"),
        ("question_id,score\nq,1,2\n", "line 2: 3 values for 2 columns: put values"),
        ('question_id,score\n"q,1\n', "A double quote is not closed"),
        (
            "question_id,score\nq,1\nq,0\n",
            r"q \(lines 2 and 3: 1 and 0\)\. Keep one line .* or add",
        ),
        ("question_id,global_example_id,score\nq,x,1\n", '"x" is not an integer'),
        ("question_id,global_example_id,score\nq,3,1\nq,3,0\n", r"q \(example 3\) \(lines 2 and 3"),
        (b"question_id,score\n\xf1\x00,1\n", 'is not UTF-8 .* save it as "CSV UTF-8"'),
    ],
)
def test_unreadable_values_are_reported_with_their_line(
    file: Path, text: str | bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(file, text)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_scores_of_any_spreadsheet_are_read(file: Path, mark: str, encoding: str) -> None:
    text = "question_id,score\nñ,0.5\nq,1\n".replace(",", mark).replace(".", ",")
    assert read(file, text.encode(encoding)).labels == {"ñ": 0.5, "q": 1.0}


def test_missing_column_is_an_error(file: Path) -> None:
    with pytest.raises(InputError, match='no column "rating"'):
        read(file, "question_id,score\nq,1\n", score_column="rating")


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist: create one with"):
        read_scores(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_scores(tmp_path)


def test_repeated_equal_scores_are_counted(file: Path) -> None:
    scores = read(file, "question_id,score\nq,1\nq,1.0\nq,1\n")
    assert scores.labels == {"q": 1.0}
    assert "2 lines repeat an earlier score" in scores.notes[0]


def test_answers_to_one_question_are_distinguished(file: Path) -> None:
    text = "question_id,global_example_id,score\nq,0,1\nq,1,0\nr,2,0.5\n"
    scores = read(file, text)
    assert scores.find(["r", "q", "q"], [2, 1, 0]) == [0.5, 0.0, 1.0]
    assert scores.find(["r"], [7]) == [None], "another answer does not have this score"


def test_missing_scores_are_rejected_or_marked(file: Path) -> None:
    scores = read(file, "question_id,score\nq0,1\n")
    names = [f"q{i}" for i in range(8)]
    with pytest.raises(InputError, match=r"7 of 8 answers .*q1, .*q5, and 2 more: .*`skip_unlab"):
        require_scores(scores, names, range(8), allow_missing=False)
    found = require_scores(scores, names, range(8), allow_missing=True)
    assert found.missing.tolist() == [False] + [True] * 7
    assert found.values[0] == 1.0 and found.values.dtype == "float32"


def test_file_of_another_store_is_rejected_with_an_id_of_each(file: Path) -> None:
    scores = read(file, "question_id,score\nnq_0,1\n")
    with pytest.raises(
        InputError, match='the file has IDs like "nq_0", the store has IDs like "tqa_1"'
    ):
        require_scores(scores, ["tqa_1"], [0], allow_missing=True)


def test_one_score_for_several_answers_is_reported(file: Path) -> None:
    scores = read(file, "question_id,score\nq,1\n")
    found = require_scores(scores, ["q", "q"], [0, 1], allow_missing=False)
    assert found.values.tolist() == [1.0, 1.0]
    assert "1 more answers than questions" in found.notes[0]
