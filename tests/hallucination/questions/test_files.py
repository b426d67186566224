"""Common question files are read without options; unusable ones are rejected."""

import gzip
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew.base.errors import InputError
from clew.hallucination.questions import SkippedQuestion, load_questions
from tests.hallucination.questions.loading import load_text

NQ_OPEN = Path(__file__).parents[3] / "shared/data/qa/NQ-open.dev.jsonl"


@pytest.mark.skipif(not NQ_OPEN.exists(), reason="the shared copy of NQ-Open is not here")
def test_all_of_nq_open_is_read() -> None:
    loaded = load_questions(str(NQ_OPEN))
    assert len(loaded.questions) == 3610
    assert not loaded.skipped
    assert all(question.answers for question in loaded.questions)


def test_csv_from_windows_is_read(tmp_path: Path) -> None:
    text = '\ufeffQuestion,Answer\r\n"What, then?",Paris\r\n\r\n"Two\r\nlines",Łódź\r\n'
    loaded = load_text(tmp_path, "facts.csv", text)
    assert [(q.id, q.question, q.answers) for q in loaded.questions] == [
        ("facts_0", "What, then?", ("Paris",)),
        ("facts_1", "Two\r\nlines", ("Łódź",)),
    ]


def test_gzipped_tsv_is_read(tmp_path: Path) -> None:
    tabs = load_text(tmp_path, "a.tsv", "question\tanswer\nwho, me?\tyes\n")
    packed = gzip.compress(b'{"question": "who, me?", "answer": "yes"}\n')
    lines = load_text(tmp_path, "a.jsonl.gz", packed)
    assert tabs.questions == lines.questions
    assert tabs.sha256 == lines.sha256


def test_json_with_one_record_per_line_is_read(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "a.json", '{"question": "a"}\n{"question": "b"}\n')
    assert [question.question for question in loaded.questions] == ["a", "b"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiter_of_a_csv_is_found_in_its_header(tmp_path: Path, delimiter: str) -> None:
    header, row = (
        ("question", '"answers; more, or less"', "category"),
        ('"Who, or what?"', "x", "y"),
    )
    text = f"\ufeff\n{delimiter.join(header)}\n{delimiter.join(row)}\n"
    loaded = load_text(tmp_path, "a.csv", text)
    assert [(one.question, one.category) for one in loaded.questions] == [("Who, or what?", "y")]


def test_malformed_csv_rows_are_skipped_and_listed(tmp_path: Path) -> None:
    text = 'id,question,answer\n1,one, two,x\n2,two\n3,"open\n4,four,y\n'
    loaded = load_text(tmp_path, "a.csv", text)
    assert [(q.id, q.answers) for q in loaded.questions] == [("2", ())]
    assert loaded.skipped == [
        SkippedQuestion(
            where="row 1", reason="it has 4 cells for 3 columns (an unquoted delimiter?)"
        ),
        SkippedQuestion(
            where="row 3", reason="lines 4 to 5 are not valid CSV (unexpected end of data)"
        ),
    ]


def test_rows_without_text_are_counted_and_named(tmp_path: Path) -> None:
    text = "question,answer\nWho?,Ann\n , \n\nWhat?,it\n" + ",\n" * 6
    loaded = load_text(tmp_path, "a.csv", text)
    assert [one.id for one in loaded.questions] == ["a_0", "a_1"]
    [blank] = loaded.skipped
    assert blank.where == "7 rows (lines 3, 6, 7, 8, 9, ...)" and "empty" in blank.reason


def test_parquet_and_arrow_are_read(tmp_path: Path) -> None:
    records = [
        {"question": "a", "answer": {"value": "x", "aliases": ["y"]}, "pages": ["long"]},
        {"question": None, "answer": {"value": "z", "aliases": []}, "pages": []},
        {"question": "c", "answer": None, "pages": None},
    ]
    table = pa.Table.from_pylist(records)
    pq.write_table(table, tmp_path / "data.parquet")
    with pa.ipc.new_file(str(tmp_path / "data.arrow"), table.schema) as writer:
        writer.write_table(table)
    stream = tmp_path / "stream" / "data.arrow"
    stream.parent.mkdir()
    with pa.ipc.new_stream(str(stream), table.schema) as writer:
        writer.write_table(table)
    for path in (tmp_path / "data.parquet", tmp_path / "data.arrow", stream):
        loaded = load_questions(str(path))
        assert [(q.id, q.answers) for q in loaded.questions] == [
            ("data_0", ("x", "y")),
            ("data_2", ()),
        ]
        assert loaded.skipped == [SkippedQuestion(where="row 2", reason="its question is empty")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"hello", r'unknown file extension "\.txt": use one of \.jsonl, '),
        ("a.jsonl", b"", r"a\.jsonl is empty"),
        ("a.json", b"\n", r"a\.json is empty"),
        ("a.csv", b"question,answer\n", r"a\.csv is empty"),
        ("a.csv", b"q\xe9\x00,a\n", r"not UTF-8 text \(found the byte 0xe9\): save it as UTF-8"),
        ("a.csv", "ööö\n".encode() + b"\xe9,a\n", r"not UTF-8 text"),
        ("a.csv", b"frage,antwort\nx,y\n", r"\(found: frage, antwort\): name it one of question, "),
        ("a.jsonl", b'{"text": 1}\n', r"no question column \(found: text\)"),
        ("a.jsonl", b"{\n{\n", r"none of the 2 records can be used \(line 1: it is not JSON"),
        ("a.json", b'[{"question": "a"}', r"is not JSON \(.*\): fix it"),
        ("a.json", b'{"rows": 3}', r"does not contain a list of records"),
        ("a.json", b"[" * 100_000, r"is not JSON"),
        ("a.jsonl.gz", b"plain", r"cannot be read as \.jsonl\.gz \(Not a gzipped file"),
        ("a.parquet", b"", r"cannot be read as \.parquet"),
        ("a.parquet", b"PAR1 no", r"cannot be read as \.parquet"),
        ("a.arrow", b"", r"cannot be read as \.arrow"),
        ("a.arrow", b"ARROW1 no", r"cannot be read as \.arrow"),
    ],
)
def test_unusable_file_is_rejected_with_the_reason(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_text(tmp_path, name, content)
    assert "\n" not in str(caught.value)


def test_table_without_a_question_column_lists_its_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"found: text, label\): name it one of question"):
        load_questions(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize("spec", ["", "no/such/file", "none.jsonl", "/none.csv", r"C:\none.csv"])
def test_missing_file_is_an_error(spec: str) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        load_questions(spec)


@pytest.mark.parametrize("spec", ["mine.cvs", "./mine.csb", "Mine.csv.gz"])
def test_misspelled_file_is_suggested(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.csv").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r'no such file .* \(did you mean "mine.csv"\?\): check'):
        load_questions(spec)


@pytest.mark.parametrize("spec", ["fact", "Facts"])
def test_misspelled_built_in_questions_are_suggested(spec: str) -> None:
    with pytest.raises(InputError, match=r'unknown questions .* \(did you mean "facts"\?\): give'):
        load_questions(spec)


def test_split_of_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "a"}')
    with pytest.raises(InputError, match='has no config or split: omit ":train"'):
        load_questions(f"{tmp_path / 'a.jsonl'}:train")


def test_zero_questions_are_rejected() -> None:
    with pytest.raises(InputError, match="^num_samples is 0: it must be 1 or more"):
        load_questions("facts", 0)


@pytest.mark.slow
def test_local_files_load_without_importing_large_libraries(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "a"}')
    code = (
        "import sys; from clew.hallucination.questions import load_questions; "
        f"load_questions({str(tmp_path / 'a.jsonl')!r}); "
        "print({'datasets', 'torch', 'transformers'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
