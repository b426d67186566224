"""clew verify"""

from typing import TYPE_CHECKING

import typer
from rich.console import Console

from clew.base.texts import for_shell
from clew.base.urls import as_path
from clew.cli.commands import Call, read_command
from clew.cli.errors import with_flags
from clew.cli.printing import print_line
from clew.hallucination.workflow import verify

if TYPE_CHECKING:
    from clew.hallucination.workflow.verification import CheckedStore
    from clew.storage.verify import Problem

COMMAND = read_command(verify)


def run(call: Call) -> None:
    result = call.run(verify)
    if call.as_json:
        call.print_json(result.as_dict())
    else:
        folder = as_path(call.settings["store"])
        for store in result.stores:
            is_alone = len(result.stores) == 1 or store.path == folder
            place = "" if is_alone else store.path.relative_to(folder).as_posix()
            _print(call.console, store, place, repair=call.settings["repair"])
        for name in result.not_checked:
            print_line(call.console, f"{name} has no checksum: you may edit it")
    if any(_is_failure(store, repair=call.settings["repair"]) for store in result.stores):
        raise typer.Exit(1)


def _is_failure(store: "CheckedStore", *, repair: bool) -> bool:
    """Whether to exit with 1. After a repair, rows that still have to be created again do not count
    as a failure."""
    return store.is_damaged if repair else bool(store.problems)


def _print(console: Console, store: "CheckedStore", place: str, *, repair: bool) -> None:
    """`place` is the store's in the folder of several, "" for one that was given itself."""
    before = f"{place}: " if place else ""
    if store.rebuilt:
        print_line(console, f"{before}{store.rebuilt}")
    for problem in store.found:
        print_line(console, with_flags(_message(problem, place)))
    for line in store.repaired:
        print_line(console, f"repaired: {before}{line}")
    if not store.problems:
        print_line(console, f"{store.path} is intact: all checksums match")
    elif repair and not store.is_damaged:
        print_line(console, f"{before}{store.next_step} to re-create the missing rows")
    elif any(problem.kind != "file" for problem in store.problems if not problem.is_unfinished):
        command = for_shell(["clew", "verify", store.path, "--repair"])
        print_line(console, f"repair it with: {command}")


def _message(problem: "Problem", place: str) -> str:
    """What is wrong, with the store's place before the file, or before all if none is named."""
    if not place:
        return problem.message
    if problem.file in problem.message:
        return problem.message.replace(problem.file, f"{place}/{problem.file}", 1)
    return f"{place}: {problem.message}"
