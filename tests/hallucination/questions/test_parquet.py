"""A Parquet file is decoded in a process of its own, with limited memory and time."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew.base.errors import InputError
from clew.hallucination.questions import load_questions
from clew.hallucination.questions.tables import read_table

ROWS = 300
TABLE = pa.table(
    {
        "id": list(range(ROWS)),
        "question": [f"What is {n}?" for n in range(ROWS)],
        "answer": [
            {"value": str(n), "aliases": [str(n), "same"] if n % 3 else None} for n in range(ROWS)
        ],
        "embedding": [[0.5] * 4] * ROWS,
    }
)
# The fields of a page header before its number of values: the sizes, and the start of a struct.
COUNT = b"\x2c\x15"


def list_of(items: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), items)


def write_aliases(path: Path, aliases: pa.Array) -> Path:
    pq.write_table(pa.table({"question": ["who?"] * len(aliases), "aliases": aliases}), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "none"},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "gzip", "use_dictionary": False, "version": "1.0"},
        {"compression": "lz4", "row_group_size": 70, "data_page_size": 100},
        {"data_page_version": "2.0", "use_dictionary": False, "row_group_size": 9},
        {"write_page_index": True, "write_page_checksum": True, "store_schema": False},
        {"use_dictionary": False, "column_encoding": {"id": "DELTA_BINARY_PACKED"}},
    ],
)
def test_parquet_is_read_however_it_is_written(tmp_path: Path, options: Mapping[str, Any]) -> None:
    pq.write_table(TABLE, tmp_path / "q.parquet", **options)
    questions = load_questions(str(tmp_path / "q.parquet")).questions
    assert [one.question for one in questions] == TABLE["question"].to_pylist()
    assert questions[1].answers == ("1", "same")


@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "zstd"])
def test_parquet_that_polars_writes_is_read(tmp_path: Path, compression: Any) -> None:
    polars = pytest.importorskip("polars")
    table = polars.from_arrow(TABLE)
    table.write_parquet(tmp_path / "q.parquet", compression=compression, row_group_size=90)
    assert len(load_questions(str(tmp_path / "q.parquet")).questions) == ROWS


def test_empty_parquet_is_read_as_such(tmp_path: Path) -> None:
    pq.write_table(TABLE.slice(0, 0), tmp_path / "q.parquet")
    assert list(read_table(tmp_path / "q.parquet")) == []


@pytest.mark.slow
def test_repeated_accepted_answers_are_no_bomb(tmp_path: Path) -> None:
    rows = 100_000
    aliases = pa.FixedSizeListArray.from_arrays(pa.array(["a", "b"] * 10 * rows), 20)
    questions = [f"What is {n}?" for n in range(rows)]
    aliases = aliases.cast(pa.list_(pa.string()))
    table = pa.table({"question": questions, "aliases": aliases})
    pq.write_table(table, tmp_path / "q.parquet", compression="zstd")
    assert next(read_table(tmp_path / "q.parquet")).number == 0


@pytest.mark.parametrize(
    "aliases",
    [
        list_of(pa.nulls(20_000, pa.string())),
        pa.nulls(1, pa.list_(pa.bool_(), 2_000_000)),
        pa.nulls(1, pa.list_(pa.list_(pa.bool_(), 2000), 1000)),
    ],
)
def test_millions_of_missing_values_are_no_answers(tmp_path: Path, aliases: pa.Array) -> None:
    path = write_aliases(tmp_path / "q.parquet", aliases)
    assert load_questions(str(path)).questions[0].answers == ()


def test_row_with_millions_of_lists_is_refused(tmp_path: Path) -> None:
    aliases = list_of(pa.array([[]] * 2_000_000, pa.list_(pa.string())))
    path = write_aliases(tmp_path / "q.parquet", aliases)
    with pytest.raises(InputError, match=r"more than 200 times its size .*to 128 MB"):
        load_questions(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("number", [0x26, 0x2A, 0x7E, 0x29])  # 19, 21, 63 and -21 values
def test_page_that_contradicts_the_footer_is_refused(tmp_path: Path, number: int) -> None:
    path = write_aliases(tmp_path / "q.parquet", pa.array([["a"]] * 20))
    content = bytearray(path.read_bytes())
    place = content.index(COUNT + bytes([2 * 20])) + len(COUNT)
    content[place] = number
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read as \.parquet"):
        load_questions(str(path))


@pytest.mark.slow
def test_flipped_bytes_are_refused_or_read(tmp_path: Path) -> None:
    path = tmp_path / "q.parquet"
    pq.write_table(TABLE.slice(0, 9), path, compression="none", store_schema=False)
    content, chance = path.read_bytes(), random.Random(0)
    for _ in range(120):
        broken = bytearray(content)
        broken[chance.randrange(len(broken))] = chance.randrange(256)
        path.write_bytes(broken)
        try:
            assert len(list(read_table(path))) == 9
        except (InputError, ValueError) as error:
            assert str(error)


@pytest.mark.sweep
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_text_that_a_list_repeats_beyond_memory_is_refused(
    tmp_path: Path, compression: str
) -> None:
    """The file has it once; decoded, it takes 2 GB."""
    table = pa.table({"question": ["who?"], "aliases": [["x" * 200_000] * 10_000]})
    pq.write_table(table, tmp_path / "q.parquet", compression=compression)
    with pytest.raises(InputError, match="decompresses to more than 200 times its size"):
        load_questions(str(tmp_path / "q.parquet"))


def test_long_text_that_many_rows_repeat_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.hallucination.questions.tables._FREE_BYTES", 1 << 20)
    table = pa.table({"question": ["x" * 10_000] * 2000})
    pq.write_table(table, tmp_path / "q.parquet", compression="zstd")
    with pytest.raises(InputError, match="decompresses to more than 200 times its size"):
        load_questions(str(tmp_path / "q.parquet"))


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_delta_encoded_texts_are_refused(tmp_path: Path, encoding: str) -> None:
    options: Any = {"use_dictionary": False, "column_encoding": {"question": encoding}}
    pq.write_table(TABLE, tmp_path / "q.parquet", **options)
    with pytest.raises(InputError, match=r"q\.parquet has delta-encoded texts.*jsonl"):
        load_questions(str(tmp_path / "q.parquet"))


def test_millions_of_nulls_without_any_bytes_are_not_listed(tmp_path: Path) -> None:
    table = pa.table({"question": ["who?"], "aliases": list_of(pa.nulls(9_000_000))})
    with pa.ipc.new_file(str(tmp_path / "q.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InputError, match="decompresses to more than 200 times"):
        load_questions(str(tmp_path / "q.arrow"))


def test_lists_of_a_fixed_length_are_read(tmp_path: Path) -> None:
    """Without a null: pyarrow reads those of such lists from version 26 on."""
    aliases = pa.array([["a", "b"], ["c", "d"]], pa.list_(pa.string(), 2))
    path = write_aliases(tmp_path / "q.parquet", aliases)
    assert load_questions(str(path)).questions[0].answers == ("a", "b")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pa.duration("s"), pa.timestamp("s"), pa.timestamp("s", tz="no/where"), pa.date64()]
)
def test_time_that_python_cannot_hold_gives_an_error(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"question": ["who?"], "answer": pa.array([1 << 62]).view(kind)})
    with pa.ipc.new_file(str(tmp_path / "q.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InputError, match=r"q\.arrow cannot be read"):
        load_questions(str(tmp_path / "q.arrow"))
