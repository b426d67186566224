"""clew patterns list"""

from dataclasses import asdict
from pathlib import Path

import typer

from clew.base.terminal import TextConsole
from clew.base.texts import for_terminal
from clew.cli.commands import Call, Command
from clew.cli.errors import error_text
from clew.cli.patterns.hints import command_text
from clew.cli.patterns.info import accuracy_text
from clew.cli.printing import make_table, print_line
from clew.patterns.workflow import list_sets

COMMAND = Command(
    function=list_sets, name="patterns list", example="clew patterns list", has_json=True
)


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    from clew.patterns.library.pattern_set import summarize_library

    library = Path(call.settings["library"])
    summaries, damaged = summarize_library(library)
    for error in damaged:
        print_line(TextConsole(stderr=True), f"clew: {error_text(error)}")
    if call.as_json:
        call.print_json([asdict(one) for one in summaries])
        return
    if not summaries and not damaged:
        create = command_text("create", "NAME", library=library)
        print_line(call.console, f"no sets in {library} yet. Create one: {create}")
        return
    table = make_table("set", "classes", "photos", "test accuracy (95% CI)", "trained")
    for one in summaries:
        trained = one.model.finished[:10] if one.model and one.model.finished else "-"
        counts = (f"{len(one.classes):,}", f"{one.photos:,}")
        table.add_row(for_terminal(one.name), *counts, accuracy_text(one.model), trained)
    if summaries:
        call.console.print(table)
