"""clew convert"""

from functools import partial

import typer

from clew.base.texts import counted, for_shell
from clew.cli.commands import Call, read_command
from clew.cli.errors import with_flags
from clew.cli.printing import print_line
from clew.hallucination.workflow import convert

COMMAND = read_command(convert)


def run(call: Call) -> None:
    result = call.run(convert)
    say = partial(print_line, call.console)
    for skip in result.skipped:
        say(f"excluded: {with_flags(str(skip))}")
    stores = ", ".join(str(store) for store in result.stores) or "no store"
    rows, files = counted(result.traces, "row"), counted(result.files, "file")
    already = f" ({result.already:,} of them already converted)" if result.already else ""
    say(f"{rows} from {files}{already} in {stores}")
    if call.as_json:
        excluded = [{"file": skip.file, "reason": skip.reason} for skip in result.skipped]
        told = {"stores": [str(store) for store in result.stores], "rows": result.traces}
        call.print_json({**told, "files": result.files, "excluded": excluded})
    elif result.stores:
        command = for_shell(["clew", "inspect", result.stores[0]])
        print_line(call.progress, f"inspect them with: {command}")
    if not result.complete:
        raise typer.Exit(1)
