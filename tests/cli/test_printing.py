"""What reaches a terminal: texts without control characters."""

import io
import json

from rich.console import Console

from clew.cli.printing import make_table, plain_text


def test_control_characters_are_escaped() -> None:
    assert plain_text("\x1b]0;hi\x07 \x9b2J \r\x7f\udcff") == (
        r"\u001b]0;hi\u0007 \u009b2J \u000d\u007f\udcff"
    )
    assert plain_text("naïve 日本\tü") == "naïve 日本\tü"


def test_newlines_are_kept_only_on_request() -> None:
    assert plain_text("a\nb") == r"a\nb"
    assert plain_text("a\nb", lines=True) == "a\nb"


def test_json_stays_json() -> None:
    text = json.dumps({"a": "\x9b\x1b\n"}, indent=1, ensure_ascii=False)
    assert json.loads(plain_text(text, lines=True)) == {"a": "\x9b\x1b\n"}


def test_table_lines_have_no_trailing_spaces() -> None:
    table = make_table("name", "figure")
    table.add_column("why")
    table.add_row("a long name", "1", "short")
    table.add_row("b", "1,000", "", style="bold")
    shown = io.StringIO()
    Console(file=shown, width=60, force_terminal=True, color_system=None).print(table)
    assert shown.getvalue() == (
        "name         figure  why\na long name       1  short\nb             1,000\n"
    )
