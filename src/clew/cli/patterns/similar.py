"""clew patterns similar"""

from dataclasses import asdict

import typer

from clew.base.texts import for_terminal
from clew.cli.commands import Call, Command
from clew.cli.options import Spelling
from clew.cli.printing import make_table
from clew.cli.renderer import Renderer
from clew.cli.signals import long_run
from clew.patterns.workflow import find_similar

COMMAND = Command(
    function=find_similar,
    name="patterns similar",
    example="clew patterns similar bird.jpg --data my_photos",
    spelling=Spelling(metavars={"image": "IMAGE"}),
    has_json=True,
    has_threads=True,
    is_resumable=True,
)


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    message = "what was computed is saved; run the same command again to resume"
    with long_run(call.progress, message) as stop, Renderer(call.progress) as reporter:
        found = find_similar(**call.settings, reporter=reporter, should_stop=stop)
    if call.as_json:
        call.print_json([asdict(photo) for photo in found])
        return
    table = make_table()
    for heading in ("photo", "class"):
        table.add_column(heading, overflow="fold")
    table.add_column("similarity", justify="right")
    for photo in found:
        words = (photo.name, photo.label, f"{photo.similarity:.2f}")
        table.add_row(*(for_terminal(word) for word in words))
    call.console.print(table)
