"""clew patterns clean and similar: problems in the photos themselves."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console

from clew.base.texts import counted, for_terminal
from clew.cli.commands import Call, read_command
from clew.cli.errors import call_text
from clew.cli.printing import make_table, print_line
from clew.cli.renderer import Renderer
from clew.cli.serve import check_web, serve_until_done
from clew.cli.signals import long_run
from clew.patterns.workflow import clean_photos, find_similar

if TYPE_CHECKING:
    from clew.patterns.cleaning.findings import Finding
    from clew.patterns.cleaning.session import Cleaning, CleanPlace, CleanResult


_CLEAN = read_command(clean_photos, "patterns clean")
_SHOWN = 3  # findings of each kind


def _run_clean(call: Call) -> None:
    settings = dict(call.settings)
    page = {name: settings[name] for name in ("web", "port", "browser")}
    check_web(page["web"])
    message = "what was computed is saved; run the same command again to resume"
    with long_run(call.progress, message) as stop, Renderer(call.progress) as reporter:
        result = clean_photos(**{**settings, "web": False}, reporter=reporter, should_stop=stop)
    if call.as_json:
        call.print_json(_describe(result))
        return
    if settings["undo"]:
        for change in result.undone:
            print_line(call.console, f"undone: {change.action} {change.source}")
        return
    _print_findings(call.console, result)
    _print_clean_places(call.progress, result)
    place = _place(call)
    if page["web"] and len(result):
        _decide(call.console, place, result, port=page["port"], browser=page["browser"])
    elif len(result):
        print_line(call.progress, f"decide about each of them with: {call_text(place.call())}")


def _place(call: Call) -> "CleanPlace":
    from clew.patterns.workflow.sets import choose_place

    return choose_place(
        **{name: call.settings[name] for name in ("data", "name", "out", "library")}
    )


def _describe(result: "CleanResult") -> dict[str, object]:
    if result.undone:
        undone = [{"action": one.action, "photo": one.source} for one in result.undone]
        return {"folder": str(result.folder), "undone": undone}
    return {"folder": str(result.folder), **result.findings.describe()}


def _print_findings(console: Console, result: "CleanResult") -> None:
    from clew.patterns.cleaning.findings import KINDS, TITLES

    findings = result.findings
    photos = counted(findings.photos, "photo")
    classes = counted(len(findings.classes), "class", "classes")
    print_line(console, f"{photos} of {classes} in {findings.data}")
    for kind, count in findings.excluded.items():
        print_line(console, f"excluded: {count:,} {kind}")
    if not len(result):
        print_line(console, "no problems found")
    for kind in KINDS:
        found = [finding for finding in result if finding.kind == kind]
        if found:
            console.print(f"{TITLES[kind].lower()}: {len(found):,}", style="bold")
            _print_some(console, found)
    for note in findings.notes:
        print_line(console, f"note: {note}")


def _print_some(console: Console, found: "list[Finding]") -> None:
    table = make_table()
    table.show_header = False
    for _ in range(2):
        table.add_column("", overflow="fold")
    for finding in found[:_SHOWN]:
        table.add_row(for_terminal(finding.name), for_terminal(finding.reason))
    if len(found) > _SHOWN:
        table.add_row(f"... and {len(found) - _SHOWN:,} more", "")
    console.print(table)


def _print_clean_places(console: Console, result: "CleanResult") -> None:
    print_line(console, f"lists: {result.json_file} and {result.list_file}")
    if result.report.exists():
        print_line(console, f"report: {result.report}")


def _decide(
    console: Console, place: "CleanPlace", result: "CleanResult", *, port: int, browser: bool
) -> None:
    from clew.patterns.cleaning.page import open_clean_page
    from clew.patterns.cleaning.session import open_cleaning

    with (
        open_cleaning(place, result.findings) as cleaning,
        open_clean_page(cleaning, port, call_text) as server,
    ):
        print_line(console, f"page: {server.address}")
        print_line(console, "finish there or press Ctrl-C here; your decisions are saved")
        try:
            serve_until_done(console, server, browser=browser)
        finally:
            _print_cleaned(console, cleaning)


def _print_cleaned(console: Console, cleaning: "Cleaning") -> None:
    from clew.patterns.cleaning.findings import KINDS

    counts = cleaning.counts()
    left = sum(len(cleaning.waiting(kind)) for kind in KINDS)
    rest = f"; {left:,} left, continue with: {call_text(cleaning.again_call)}" if left else ""
    print_line(console, f"{', '.join(f'{count:,} {name}' for name, count in counts.items())}{rest}")
    if counts["removed"]:
        print_line(
            console,
            f"removed photos are in {cleaning.decisions.removed}; --undo N brings them back",
        )
    if any(counts[name] for name in ("relabeled", "moved", "removed")):
        print_line(console, f"train on the cleaned photos with: {call_text(cleaning.next_call)}")


_SIMILAR = read_command(find_similar, "patterns similar")


def _run_similar(call: Call) -> None:
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


COMMANDS = ((_CLEAN, _run_clean), (_SIMILAR, _run_similar))
