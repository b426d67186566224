"""What reaches a terminal: texts without control characters, markup or emoji codes."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress, TextColumn

import clew
from clew.base.terminal import TextConsole, as_text
from clew.base.texts import for_json, for_terminal
from clew.cli.printing import PlainTable, print_line, print_table
from tests.base.test_foreign_text import UNSAFE, hostile


def test_control_characters_are_escaped() -> None:
    assert for_terminal("\x1b]0;hi\x07 \x9b2J \r\x7f\udcff") == (
        r"\u001b]0;hi\u0007 \u009b2J \u000d\u007f\udcff"
    )
    assert for_terminal("naïve 日本\tü") == "naïve 日本\tü"


def test_newlines_are_kept_only_on_request() -> None:
    assert for_terminal("a\nb") == r"a\nb"
    assert for_terminal("a\nb", lines=True) == "a\nb"


def test_json_stays_json() -> None:
    value = {"a": "\x9b\x1b\n\u202e\U000e0041\\"}
    text = for_json(json.dumps(value, indent=1, ensure_ascii=False))
    assert json.loads(text) == value
    assert not UNSAFE - {"\n"} & {*text}


def test_table_lines_have_no_trailing_spaces() -> None:
    shown = io.StringIO()
    console = TextConsole(file=shown, width=60, force_terminal=True, color_system=None)
    rows = [("a long name", "1", "short"), ("b", "1,000", "")]
    print_table(console, ("name", "figure", "why"), rows, numbers=(1,))
    assert shown.getvalue() == (
        "name         figure  why\na long name       1  short\nb             1,000\n"
    )


@hostile
def test_console_shows_a_text_as_it_is(text: str) -> None:
    shown = io.StringIO()
    console = TextConsole(file=shown, width=200, force_terminal=True, color_system=None)
    table = PlainTable()
    table.add_column("name")
    table.add_row(text)
    for one in (text, table, as_text(text)):
        console.print(one)
    console.print(text, style="bold")
    print_line(console, text)
    assert not UNSAFE - {"\n"} & {*shown.getvalue()}
    expected = for_terminal(text, lines=True).split()
    assert shown.getvalue().split()[: len(expected)] == expected


@pytest.mark.parametrize("text", [":bomb:", "[red]x", "[/]", "\x1b[2J", "\u202ex"])
def test_status_and_bar_show_a_text_as_it_is(text: str) -> None:
    shown = io.StringIO()
    console = TextConsole(file=shown, width=80)
    assert console.status(text).renderable.text.plain == for_terminal(text)  # type: ignore[union-attr]
    bar = Progress(TextColumn("{task.description}", markup=False), console=console)
    bar.add_task(text)
    console.print(bar)
    assert not UNSAFE - {"\n"} & {*shown.getvalue()}


@pytest.mark.slow
def test_consoles_csv_files_and_commands_are_made_in_one_place() -> None:
    """Another would let foreign text act; the help quotes only its own examples."""
    source = Path(clew.__file__).parent
    made = re.compile(r"(?<!Text)Console\(|csv\.(writer|DictWriter)\(|shlex\.(join|quote)")
    makers = [path.name for path in source.rglob("*.py") if made.search(path.read_text())]
    assert sorted(makers) == ["help.py", "text_files.py", "texts.py"]


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "{}"],
        ["inspect", "a", "{}"],
        ["verify", "{}", "--json"],
        ["{}"],
        ["inspect", "--{}"],
        ["-{}"],
        ["extract", "--questions", "{}", "--out", "x"],
        ["extract", "--keep", "{}", "--out", "x"],
        ["extract", "--num-samples", "{}", "--out", "x"],
        ["extract", "--config", "{}", "--out", "x"],
        ["label", "{}", "--out", "x.csv"],
        ["train", "--preprocessed-dir", "{}", "--methods", "{}"],
        ["patterns", "info", "{}"],
        ["patterns", "{}"],
    ],
)
@pytest.mark.parametrize("text", ["\x1b[31m[red]:bomb:\u202e", "a\x9b\rb\nclew: done"])
def test_what_was_typed_is_escaped_in_the_answer(
    run: Any, words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(*(word.format(text) for word in words))
    assert ended.code in (1, 2)
    assert not UNSAFE - {"\n"} & {*ended.out, *ended.err}
    assert "\nclew: done" not in ended.err
