"""A question file of any content is read in bounded memory, or rejected with what to do."""

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew.base.errors import InputError
from clew.hallucination.questions import collect_questions, load_questions
from clew.storage import text_files
from tests.hallucination.questions.loading import load_text

GOOD = '{"question": "who?"}\n'


@pytest.fixture
def short_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may have 1,000 characters: the limit itself would make the tests slow."""
    for module in ("storage.text_files", "hallucination.questions.records"):
        monkeypatch.setattr(f"clew.{module}.MAX_RECORD_CHARACTERS", 1000)


@pytest.mark.usefixtures("short_records")
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r", ""])
def test_line_that_is_too_long_is_skipped_by_number_and_size(tmp_path: Path, ending: str) -> None:
    long = '{"question": "' + "x" * 2_000_000 + '"}'
    loaded = load_text(tmp_path, "a.jsonl", GOOD + long + ending)
    assert len(loaded.questions) == 1
    assert [one.where for one in loaded.skipped] == ["line 2"]
    assert "line 2 has 2,000,01" in loaded.skipped[0].reason
    assert "at most 1,000" in loaded.skipped[0].reason


@pytest.mark.usefixtures("short_records")
@pytest.mark.parametrize(
    "record",
    [
        '"' + "never closed\n" * 300,
        '"' + '\n","' * 300,
        '"a"x,' * 30 + "\n",
        "x," * 5000 + "\n",
    ],
)
def test_csv_record_that_never_ends_does_not_grow_to_the_whole_file(
    tmp_path: Path, record: str
) -> None:
    good = "question,answer\nwho?,me\n"
    loaded = load_text(tmp_path, "a.csv", f"{good}{record}\nwhat?,it\n")
    assert loaded.questions[0].answers == ("me",)
    assert any("not valid CSV" in one.reason for one in loaded.skipped)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz"])
def test_decompression_bomb_is_refused_while_it_is_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "_FREE_BYTES", 1 << 10)
    packed = gzip.compress(b"question,answer\n" + b"\n" * 1_000_000)
    with pytest.raises(InputError, match=r"decompresses to more than .*decompress it first"):
        load_text(tmp_path, name, packed)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_millions_of_empty_lines_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(text_files, "_MAX_EMPTY_LINES", 1000)
    with pytest.raises(InputError, match="the last of 1,001 empty ones"):
        load_text(tmp_path, name, "question" + "\r\n" * 2000)


def test_json_file_that_is_too_large_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.hallucination.questions.files._MAX_JSON_VALUES", 1000)
    with pytest.raises(InputError, match=r"save it as JSON Lines \(.jsonl\)"):
        load_text(tmp_path, "a.json", json.dumps([[]] * 1000))
    assert load_text(tmp_path, "b.json", GOOD * 1000 + "[1]\n").skipped


@pytest.mark.parametrize("name", ["q.jsonl", "q.json", "q.csv", "q.parquet", "q.arrow", "q.csv.gz"])
def test_pipe_is_refused_instead_of_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="is a pipe, not a file: write the questions to a file"):
        load_questions(str(tmp_path / name))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"id": "x" * 5000}, "its id has 5,000 characters"),
        ({"answers": ["x" * 300_000]}, "accepted answers have more than 262,144 characters"),
        ({"answers": [str(n) for n in range(100_000)]}, "accepted answers have more than"),
        ({"answers": "[" * 300_000}, "accepted answers have more than"),
        ({"answers": eval("[" * 50 + "]" * 50)}, "nested more than 32 levels"),
        ({"answers": 10**5000}, "more than 4,000 digits"),
        ({"answers": "\ud800"}, "lone surrogate"),
        ({"id": "\ud800"}, "lone surrogate"),
    ],
)
def test_record_out_of_bounds_is_excluded_with_the_reason(
    fields: dict[str, object], reason: str
) -> None:
    loaded = collect_questions(["who?", {"question": "what?", **fields}])
    assert [one.question for one in loaded.questions] == ["who?"]
    assert reason in loaded.skipped[0].reason


@pytest.mark.parametrize(
    "cell",
    ["[" * 9000, "[" + "-" * 9000 + "1]", "[" + "not " * 9000 + "1]", "[" + "9" * 9000 + "]"],
)
def test_answer_that_only_looks_like_a_list_stays_text(cell: str) -> None:
    loaded = collect_questions([{"question": "who?", "answers": cell}])
    assert loaded.questions[0].answers == (cell,)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "Infinity", "1" * 4000])
def test_odd_numbers_are_read_or_skipped(tmp_path: Path, number: str) -> None:
    line = f'{{"question": "what?", "answer": {number}, "id": {number}}}\n'
    assert load_text(tmp_path, "a.jsonl", GOOD + line).questions[0].question == "who?"


def test_a_million_unusable_records_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.hallucination.questions.records._MAX_LISTED", 10)
    loaded = load_text(tmp_path, "a.jsonl", GOOD + "x\n" * 1000)
    assert len(loaded.skipped) == 11
    assert loaded.skipped[-1].where == "990 more records"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "arrow", "zstd.arrow"])
def test_flipped_bytes_in_a_binary_table_give_an_error_or_rows(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"q.{kind}"
    table = pa.table({"question": ["who?", "what?"] * 50, "answers": [["a", "b"], None] * 50})
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        packed = "zstd" if "zstd" in kind else None
        options = pa.ipc.IpcWriteOptions(compression=packed)
        with pa.ipc.new_file(str(path), table.schema, options=options) as writer:
            writer.write_table(table)
    content, chance = path.read_bytes(), random.Random(0)
    for _ in range(150):
        broken = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        try:
            load_text(tmp_path, f"b.{kind}", bytes(broken))
        except InputError as error:
            assert "b." in str(error)


def test_long_text_that_many_rows_share_is_not_copied_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.hallucination.questions.tables._MAX_TEXT_BYTES", 10_000)
    answers = [["a"]] * 99 + [["b" * 1000] * 20]
    table = pa.table({"question": [f"{n} " + "x" * 900 for n in range(100)], "answers": answers})
    pq.write_table(table, tmp_path / "q.parquet", row_group_size=30)
    loaded = load_questions(str(tmp_path / "q.parquet"))
    assert [one.question[:2] for one in loaded.questions[:2]] == ["0 ", "1 "]
    assert len(loaded.questions) == 99
    assert loaded.skipped[0].where == "row 100"
    assert "21 kB of text" in loaded.skipped[0].reason


def test_parquet_bomb_is_refused_by_its_footer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.hallucination.questions.tables._FREE_BYTES", 0)
    table = pa.table({"question": ["x" * 3_000_000]})
    pq.write_table(table, tmp_path / "q.parquet", compression="zstd")
    with pytest.raises(InputError, match="decompresses to more than 200 times its size"):
        load_questions(str(tmp_path / "q.parquet"))


@pytest.mark.parametrize("write", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_arrow_bomb_is_refused_before_it_is_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any, kind: pa.DataType
) -> None:
    monkeypatch.setattr("clew.hallucination.questions.tables._FREE_BYTES", 0)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    for length, path in ((10, tmp_path / "good.arrow"), (3_000_000, tmp_path / "bad.arrow")):
        table = pa.table({"question": pa.array(["x" * length]).cast(kind)})
        with write(str(path), table.schema, options=options) as writer:
            writer.write_table(table)
    assert len(load_questions(str(tmp_path / "good.arrow")).questions) == 1
    with pytest.raises(InputError, match="decompresses to more than 200 times its size"):
        load_questions(str(tmp_path / "bad.arrow"))


def test_rows_that_a_file_cannot_hold_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.hallucination.questions.tables._FREE_ROWS", 0)
    table = pa.table({"question": pa.nulls(1_000_000, pa.string())})
    pq.write_table(table, tmp_path / "q.parquet")
    with pytest.raises(InputError, match="claims 1,000,000 rows"):
        load_questions(str(tmp_path / "q.parquet"))
