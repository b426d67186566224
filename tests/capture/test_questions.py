"""Any usual file of questions is understood without options, and what is left out is named."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew.capture.questions import Question, QuestionSet, Skipped, load_questions
from clew.errors import InputError

NQ_OPEN = Path(__file__).parents[3] / "shared/data/qa/NQ-open.dev.jsonl"


def load_text(folder: Path, name: str, text: str | bytes, limit: int | None = None) -> QuestionSet:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_questions(str(path), limit)


def load_record(folder: Path, record: dict[str, Any]) -> Question:
    return load_text(folder, "one.jsonl", json.dumps(record)).questions[0]


def test_nq_open_as_it_is_published(tmp_path: Path) -> None:
    line = {"question": "who wrote it", "answer": ["Bobby Scott", "Bob Russell"]}
    loaded = load_text(tmp_path, "NQ-open.dev.jsonl", json.dumps(line) + "\n")
    assert loaded.name == "NQ-open.dev.jsonl"
    assert loaded.questions == [
        Question(
            id="NQ-open.dev_0", question="who wrote it", answers=("Bobby Scott", "Bob Russell")
        )
    ]


@pytest.mark.skipif(not NQ_OPEN.exists(), reason="the shared copy of NQ-Open is not here")
def test_the_whole_of_nq_open() -> None:
    loaded = load_questions(str(NQ_OPEN))
    assert len(loaded.questions) == 3610
    assert not loaded.skipped
    assert all(question.answers for question in loaded.questions)


def test_trivia_qa(tmp_path: Path) -> None:
    question = load_record(
        tmp_path,
        {
            "question": "Who was the man behind The Chipmunks?",
            "question_id": "tc_2",
            "answer": {
                "aliases": ["David Seville", "Ross Bagdasarian"],
                "normalized_aliases": ["david seville"],
                "type": "WikipediaEntity",
                "value": "David Seville",
            },
        },
    )
    assert question.id == "tc_2"
    assert question.answers == ("David Seville", "Ross Bagdasarian", "david seville")


def test_trivia_qa_as_the_authors_publish_it(tmp_path: Path) -> None:
    record = {
        "QuestionId": "tc_2",
        "Question": "Who?",
        "Answer": {"Value": "David", "NormalizedAliases": ["david"]},
    }
    loaded = load_text(tmp_path, "qa.json", json.dumps({"Data": [record], "Version": 1.0}))
    assert loaded.questions == [Question(id="tc_2", question="Who?", answers=("David", "david"))]


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"answer": "Paris"}, ("Paris",)),
        ({"answer": 42}, ("42",)),
        ({"answer": 42.0}, ("42",)),
        ({"answer": 0.5}, ("0.5",)),
        ({"answer": True}, ("yes", "true")),
        (
            {"answers": {"text": ["Paris", "in Paris"], "answer_start": [1, 5]}},
            ("Paris", "in Paris"),
        ),
        ({"answers": [{"text": "Paris"}, {"text": "Lutetia"}]}, ("Paris", "Lutetia")),
        ({"possible_answers": '["politician", "pol"]'}, ("politician", "pol")),
        ({"answer": "['it''s', \"a\"]"}, ("its", "a")),
        ({"answer": "[0, 1]"}, ("[0, 1]",)),
        ({"answer": "[unclosed"}, ("[unclosed",)),
        ({"answer": " Paris ", "aliases": ["Paris", "", None, "Lutetia"]}, ("Paris", "Lutetia")),
        ({"answer": None}, ()),
        ({"answer": "  "}, ()),
        ({}, ()),
    ],
)
def test_answers_in_every_usual_shape(
    tmp_path: Path, fields: dict[str, Any], answers: tuple[str, ...]
) -> None:
    assert load_record(tmp_path, {"question": "q", **fields}).answers == answers


@pytest.mark.parametrize(
    ("record", "id", "category"),
    [
        ({"Question": "q", "QID": 7, "Topic": "art"}, "7", "art"),
        ({"query": "q", "_id": "x", "category": "a" * 200, "type": "bridge"}, "x", "bridge"),
        ({"question_text": "q", "id": None, "subject": 3}, "one_0", None),
        ({"prompt": "a form", "question": "q", "id": "b", "question_id": "a"}, "a", None),
    ],
)
def test_columns_are_known_by_their_names(
    tmp_path: Path, record: dict[str, Any], id: str, category: str | None
) -> None:
    question = load_record(tmp_path, record)
    assert (question.question, question.id, question.category) == ("q", id, category)


def test_a_table_from_a_windows_machine(tmp_path: Path) -> None:
    text = '\ufeffQuestion,Answer\r\n"What, then?",Paris\r\n\r\n"Two\r\nlines",Łódź\r\n'
    loaded = load_text(tmp_path, "facts.csv", text)
    assert [(q.id, q.question, q.answers) for q in loaded.questions] == [
        ("facts_0", "What, then?", ("Paris",)),
        ("facts_1", "Two\r\nlines", ("Łódź",)),
    ]


def test_tabs_and_gzip(tmp_path: Path) -> None:
    tabs = load_text(tmp_path, "a.tsv", "question\tanswer\nwho, me?\tyes\n")
    packed = gzip.compress(b'{"question": "who, me?", "answer": "yes"}\n')
    lines = load_text(tmp_path, "a.jsonl.gz", packed)
    assert tabs.questions == lines.questions
    assert tabs.sha256 == lines.sha256


def test_json_with_a_record_a_line(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "a.json", '{"question": "a"}\n{"question": "b"}\n')
    assert [question.question for question in loaded.questions] == ["a", "b"]


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    lines = [
        '{"id": "a", "question": "one"}',
        "",
        '{"id": "b", "question": ',
        '{"id": "c", "text": "no question"}',
        '{"id": "d", "question": " "}',
        '{"id": "a", "question": "again"}',
        '["a", "list"]',
        '{"id": "e", "question": ["a", "chat"]}',
        '{"id": "f", "question": "half \\ud800"}',
        '{"question": "last"}',
        "",
    ]
    loaded = load_text(tmp_path, "ugly.jsonl", "\r\n".join(lines))
    # The id of a record without one counts broken records too, so mending them changes no other.
    assert [question.id for question in loaded.questions] == ["a", "ugly_8"]
    assert [(left.where, left.reason.split(" (")[0]) for left in loaded.skipped] == [
        ("line 3", "it is not JSON"),
        ("line 4 (id c)", "it has no question"),
        ("line 5 (id d)", "its question is empty"),
        ("line 6 (id a)", "its id was there before"),
        ("line 7", "it is a list, not a record with named fields"),
        ("line 8 (id e)", "its question is a list, not text"),
        ("line 9 (id f)", "its text holds half a character"),
    ]


def test_broken_rows_of_a_table_are_named(tmp_path: Path) -> None:
    text = 'id,question,answer\n1,one, two,x\n2,two\n3,"open\n4,four,y\n'
    loaded = load_text(tmp_path, "a.csv", text)
    assert [(q.id, q.answers) for q in loaded.questions] == [("2", ())]
    assert loaded.skipped == [
        Skipped(where="row 1", reason="it has 4 cells for 3 columns (a comma without quotes?)"),
        Skipped(where="row 3", reason="lines 4 to 5 are not CSV (unexpected end of data)"),
    ]


def test_the_hash_covers_the_whole_file(tmp_path: Path) -> None:
    lines = "".join(f'{{"question": "q{n}", "answer": "{n}"}}\n' for n in range(5))
    two, five = (load_text(tmp_path, "a.jsonl", lines, limit) for limit in (2, None))
    other = load_text(tmp_path, "a.jsonl", lines.replace('"4"', '"5"'), 2)
    assert two.questions == five.questions[:2] == other.questions
    assert two.sha256 == five.sha256 != other.sha256


def test_parquet_and_arrow(tmp_path: Path) -> None:
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
        assert loaded.skipped == [Skipped(where="row 2", reason="its question is empty")]


def test_a_saved_data_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"question": "a", "answer": ["x"]}, {"question": "b"}])
    rows.save_to_disk(tmp_path / "alone")
    datasets.DatasetDict(test=rows.select([1]), train=rows).save_to_disk(tmp_path / "both")
    alone = load_questions(str(tmp_path / "alone"), 1)
    both = load_questions(str(tmp_path / "both"))
    test = load_questions(f"{tmp_path / 'both'}:test")
    assert (alone.name, both.name, test.name) == ("alone", "both:train", "both:test")
    assert alone.questions == [Question(id="alone_0", question="a", answers=("x",))]
    assert [question.question for question in both.questions] == ["a", "b"]
    assert [question.question for question in test.questions] == ["b"]
    with pytest.raises(InputError, match='no split "dev": use one of test, train'):
        load_questions(f"{tmp_path / 'both'}:dev")


def test_a_folder_of_files(tmp_path: Path) -> None:
    folder = tmp_path / "quiz"
    folder.mkdir()
    for split, question in (("train", "a"), ("test", "b")):
        table = pa.Table.from_pylist([{"question": question, "answer": ["x"], "page": "long"}])
        pq.write_table(table, folder / f"{split}-00000.parquet")
    train, test = load_questions(str(folder)), load_questions(f"{folder}:default:test")
    assert (train.name, test.name) == ("quiz:train", "quiz:test")
    assert train.questions == [Question(id="quiz_0", question="a", answers=("x",))]
    assert test.questions[0].question == "b"


def test_a_folder_without_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read as a data set .*: give a file in it"):
        load_questions(str(tmp_path))


def test_the_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError) as caught:
        load_questions("mandarjoshi/trivia_qa:rc.nocontext:train", 10)
    message = str(caught.value)
    assert message.startswith('data set "mandarjoshi/trivia_qa:rc.nocontext:train" could not be')
    assert "HF_HUB_OFFLINE" in message
    assert "local file" in message


class _Hub:
    """A stand-in for the hub, which tests cannot reach: endless rows and a revision."""

    class config:
        name = "rc.nocontext"

    def __init__(self, revision: str) -> None:
        self.hash = revision

    def as_streaming_dataset(self) -> dict[str, Any]:
        from datasets import IterableDataset

        def rows() -> Any:
            number = 0
            while True:
                yield {"question_id": f"tc_{number}", "question": "who?", "answer": {"value": "x"}}
                number += 1

        return {"validation": IterableDataset.from_generator(rows), "test": None}


def test_the_hub_is_read_no_further_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_: _Hub("abc"))
    loaded = load_questions("mandarjoshi/trivia_qa:rc.nocontext:", 3)
    assert loaded.name == "mandarjoshi/trivia_qa:rc.nocontext:validation"
    assert [question.id for question in loaded.questions] == ["tc_0", "tc_1", "tc_2"]
    assert load_questions("mandarjoshi/trivia_qa:rc.nocontext:", 5).sha256 == loaded.sha256
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_: _Hub("def"))
    assert load_questions("mandarjoshi/trivia_qa:rc.nocontext:", 3).sha256 != loaded.sha256


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"hello", r'the ending "\.txt" is not understood: use one of \.jsonl, '),
        ("a.jsonl", b"", r"a\.jsonl holds no records"),
        ("a.json", b"\n", r"a\.json holds no records"),
        ("a.csv", b"question,answer\n", r"a\.csv holds no records"),
        ("a.csv", b"q\xe9,a\n", r"not UTF-8 text \(found the byte 0xe9\): save it as UTF-8"),
        ("a.csv", "question\nx\n".encode("utf-16"), "not UTF-8 text"),
        ("a.csv", b"frage,antwort\nx,y\n", r"\(found: frage, antwort\): name it one of question, "),
        ("a.jsonl", b'{"text": 1}\n', r"no column with a question \(found: text\)"),
        ("a.jsonl", b"{\n{\n", r"none of the 2 records can be used \(line 1: it is not JSON"),
        ("a.json", b'[{"question": "a"}', r"is not JSON \(.*\): repair it"),
        ("a.json", b'{"rows": 3}', r"holds no list of records"),
        ("a.json", b"[" * 100_000, r"is not JSON"),
        ("a.jsonl.gz", b"plain", r"cannot be read as \.jsonl\.gz \(Not a gzipped file"),
        ("a.parquet", b"", r"cannot be read as \.parquet"),
        ("a.parquet", b"PAR1 no", r"cannot be read as \.parquet"),
        ("a.arrow", b"", r"cannot be read as \.arrow"),
        ("a.arrow", b"ARROW1 no", r"cannot be read as \.arrow"),
    ],
)
def test_a_file_that_cannot_be_used(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_text(tmp_path, name, content)
    assert "\n" not in str(caught.value)


def test_a_table_without_questions_names_its_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"found: text, label\): name it one of question"):
        load_questions(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize("spec", ["", "no/such/file", "none.jsonl", "/none.csv", r"C:\none.csv"])
def test_a_file_that_is_not_there(spec: str) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        load_questions(spec)


def test_a_file_has_no_splits(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "a"}')
    with pytest.raises(InputError, match='has no config or split: leave ":train" away'):
        load_questions(f"{tmp_path / 'a.jsonl'}:train")


def test_at_least_one_question() -> None:
    with pytest.raises(InputError, match="num_samples is 0: ask for at least 1"):
        load_questions("facts", 0)


def test_local_files_do_not_wait_for_datasets(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "a"}')
    code = (
        "import sys; from clew.capture.questions import load_questions; "
        f"load_questions({str(tmp_path / 'a.jsonl')!r}); sys.exit('datasets' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
