"""clew patterns create"""

import typer

from clew.cli.commands import Call, Command
from clew.cli.patterns.hints import command_text
from clew.cli.printing import print_line
from clew.patterns.workflow import create_set

COMMAND = Command(
    function=create_set, name="patterns create", example="clew patterns create animals"
)


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    created = create_set(**call.settings)
    import_them = command_text("import", created.name, "DIR", library=created.library)
    all_at_once = command_text("flow", created.name, "--from", "DIR", library=created.library)
    print_line(call.console, f'created the set "{created.name}" in {created.folder}')
    print_line(call.progress, f"next, import a folder with one subfolder per class: {import_them}")
    print_line(call.progress, f"or run all steps at once: {all_at_once}")
