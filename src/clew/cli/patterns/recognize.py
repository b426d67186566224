"""clew patterns recognize"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from clew.base.texts import for_terminal, whole_percent
from clew.cli.commands import Call, Command
from clew.cli.printing import PlainTable, print_line
from clew.patterns.workflow import recognize

if TYPE_CHECKING:
    from clew.patterns.identification.recognize import Recognition

COMMAND = Command(
    function=recognize,
    name="patterns recognize",
    example="clew patterns recognize bird.jpg --name animals --multiscale",
    has_json=True,
    has_threads=True,
)
_BAR = 24


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    found = recognize(**call.settings)
    if call.as_json:
        call.print_json(
            {
                **found.to_record(),
                "model": str(_find_model(call.settings)),
                "threshold": found.threshold,
                "doubtful": found.is_doubtful,
            }
        )
        return
    _print(call.console, found)


def _find_model(settings: dict[str, Any]) -> Path:
    from clew.patterns.library.choose import choose_model

    return choose_model(**{name: settings[name] for name in ("model", "name", "library")}).model


def _print(console: Console, found: "Recognition") -> None:
    print_line(console, f"{found.path} ({found.width:,} x {found.height:,} pixels)")
    table = PlainTable(show_header=False)
    for label, chance in found.best:
        bar = "\N{BOX DRAWINGS HEAVY HORIZONTAL}" * round(_BAR * chance)
        table.add_row(for_terminal(label), whole_percent(chance), bar)
    console.print(table)
    if found.is_unknown:
        print_line(console, "unknown: none of these classes; the photo is unlike all of them")
    elif found.is_doubtful:
        limit = whole_percent(found.threshold)
        print_line(console, f"doubtful: no class reaches a confidence of {limit}")
    if found.best_view is not None:
        print_line(console, _describe_window(found))


def _describe_window(found: "Recognition") -> str:
    best = found.best_view
    assert best is not None
    box = best.box
    where = f"from ({box.left}, {box.top}) to ({box.right}, {box.bottom})"
    if (box.right - box.left, box.bottom - box.top) == (found.width, found.height):
        where = "in the whole photo"
    chance = whole_percent(best.probability)
    return f"most confident: {best.label} ({chance}) {where}, out of {found.views} windows"
