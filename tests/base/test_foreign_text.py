"""Text of any content reaches a terminal, a spreadsheet, a shell and a file as what it is: text."""

import io
import shutil
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clew.base.errors import Call, InputError, StoreError
from clew.base.texts import for_csv, for_shell, for_terminal, from_csv
from clew.hallucination.comparison.writing import escape_latex
from clew.hallucination.samples.splits import Splits, read_splits, write_splits
from clew.pages.markup import join, tag
from clew.patterns.trained import tables
from clew.patterns.trained.tables import SplitRow
from clew.storage.run_file import describe_run
from clew.storage.text_files import CsvRecords, csv_text, read_csv, write_csv

HOSTILE = [
    *("=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", "'=1", "''@x"),
    *(
        "\x1b[31mred",
        "\x1b]0;title\x07",
        "\x9b2J",
        "a\rb",
        "\x00",
        "\x7f",
        "\u202eexe.jpg",
        "\ufeffx",
    ),
    *(r"\u001b", r"\\u001b", "\\\x1b", r"C:\users\new", r"\ud800", r"\U000e0001", "\U000e0041x"),
    *(":bomb:", "[red]x[/red]", "[/]", "[link=http://x]y[/link]", "[bold", "\\[red]"),
    *('"', "'", "`touch x`", "$(touch x)", "a b", "; touch x", "-rf", "--help", "*", "~", "!!", ""),
    *("two\nlines", "a,b;c", "%n", "&_{}^~#$", "\\input{/etc/passwd}", "naïve 日本 👍🏽 الع"),
]
UNSAFE = {*map(chr, range(32)), *map(chr, range(127, 160)), "\u202e", "\ufeff", "\U000e0041"}
hostile = pytest.mark.parametrize("text", HOSTILE)


@hostile
def test_terminal_gets_no_character_that_acts(text: str) -> None:
    shown = for_terminal(text)
    assert not UNSAFE - {"\t"} & {*shown}
    assert for_terminal(shown) == shown


@hostile
def test_page_gets_no_character_that_acts(text: str) -> None:
    assert not UNSAFE - {*"\t\n\r\ufeff\U000e0041"} & {*join(text, tag("a", title=text))}


@hostile
def test_cell_is_no_formula_and_reads_back_the_same(text: str) -> None:
    cell = for_csv(text)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d"))
    assert not UNSAFE - {"\t", "\n"} & {*cell}
    assert from_csv(cell) == text
    assert [*CsvRecords(io.StringIO(csv_text([[text, "x"]]), newline=""))] == [[cell, "x"]]


@pytest.mark.parametrize("text", ["-5", "+0.5", "1e-9", "-1.5E+10", "inf", "-nan", ".5", "007"])
def test_number_stays_as_it_is(text: str) -> None:
    assert for_csv(text) == text


@pytest.mark.parametrize("text", ["\\" * 10**6, "+" + "1" * 10**6 + "x", "\\" * 10**6 + "u001b"])
def test_millions_of_characters_are_read_back_in_one_pass(text: str) -> None:
    assert from_csv(for_csv(text)) == text


@pytest.mark.parametrize("text", ["\udcff.jpg", "=\ud800", "\ud83d\ude00"])
def test_name_that_is_not_valid_text_gives_a_valid_csv_file(tmp_path: Path, text: str) -> None:
    write_csv(tmp_path / "a.csv", ["name", text], [[text, 1]])
    (tmp_path / "a.csv").read_text(encoding="utf-8")
    assert read_csv(tmp_path / "a.csv") == [{"name": text, text: "1"}]


def test_csv_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'name\n=1\n\xff.jpg\n"\x1b\r"\n')
    assert [row["name"] for row in read_csv(tmp_path / "a.csv")] == ["=1", "\udcff.jpg", "\x1b\r"]


def test_splits_of_a_model_read_back_the_same(tmp_path: Path) -> None:
    rows = [
        SplitRow(name=text, label=text, split="train", digest=str(n))
        for n, text in enumerate(HOSTILE)
    ]
    tables.write_splits(tmp_path, rows)
    assert tables.read_splits(tmp_path) == rows


def test_splits_of_questions_read_back_the_same(tmp_path: Path) -> None:
    ids = [text for text in HOSTILE if text.strip()]
    zeros = np.zeros(len(ids), np.float32)
    table = Splits(
        global_example_id=np.arange(len(ids)),
        question_id=pa.array(ids),
        split=zeros.astype(np.uint8),
        label=zeros,
        score=zeros,
    )
    write_splits(tmp_path / "splits.csv", table)
    assert read_splits(tmp_path / "splits.csv").question_id.to_pylist() == ids


@hostile
def test_latex_gets_no_command(text: str) -> None:
    plain = escape_latex(text).replace(r"\textbackslash{}", "")
    assert "\\input" not in plain
    assert "\n" not in plain


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_command_to_copy_is_one_line_that_bash_reads_as_the_same_words(tmp_path: Path) -> None:
    words = [text for text in (*HOSTILE, "\udcff", "'$(touch x)\x1b") if "\x00" not in text]
    command = for_shell(["printf", "%s\\0", *words])
    assert "\n" not in command
    assert not UNSAFE & {*command}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1] == words
    assert not any(tmp_path.iterdir())


@hostile
def test_call_in_an_error_is_valid_python(text: str) -> None:
    call = Call("dict", (), {"out": text, "name": 1})
    assert "\n" not in str(call)
    assert eval(str(call)) == {"out": text, "name": 1}
    path = Call("dict", (), {"out": Path(text)})
    assert eval(str(path)) == {"out": Path(text)}
    error = StoreError("it is damaged", action="repair", store=Path(f"a{text}"))
    assert not UNSAFE - {"\t"} & {*str(error)}
    about = InputError("give another.", setting="split", value=text)
    assert not UNSAFE - {"\t"} & {*str(about)}


@hostile
def test_run_file_reads_back_the_same(text: str) -> None:
    content = describe_run("train", {"out": text, "names": [text, "x"]})
    assert not UNSAFE - {"\n"} & {*content}
    found = tomllib.loads(content)
    assert (found["out"], found["names"]) == (text, [text, "x"])
