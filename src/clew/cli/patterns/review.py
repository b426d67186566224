"""clew patterns review, clean and similar: what a person decides about photos."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from rich.console import Console

from clew.base.errors import Call as HintedCall
from clew.base.texts import counted
from clew.cli.commands import Call
from clew.cli.errors import call_text, with_flags
from clew.cli.printing import print_line, print_table
from clew.cli.serve import can_open_browser, check_web, until_ctrl_c
from clew.patterns.settings import CleanSettings, ReviewSettings
from clew.patterns.workflow import clean_photos, find_similar, review_photos

if TYPE_CHECKING:
    from clew.patterns.cleaning.findings import CleanResult


def say(part: HintedCall | str) -> str:
    """The command for a call, the flag for a setting in backticks."""
    return with_flags(part) if isinstance(part, str) else call_text(part)


def _run_review(call: Call) -> None:
    check_web(call.settings["web"])
    review_and_print(call.console, ReviewSettings(**call.settings))


def review_and_print(console: Console, given: ReviewSettings) -> None:
    """Review what was identified, in the terminal or the browser, then print the next command."""
    from clew.patterns.review import run_review

    with until_ctrl_c():
        browser = given.browser and can_open_browser(console)
        run_review(replace(given, browser=browser), console, say)


def say_how_to_review(console: Console, given: ReviewSettings) -> None:
    """Print the command that reviews the doubtful photos."""
    from clew.patterns.library.choose import choose_model
    from clew.patterns.review.review import call_to_review

    chosen = choose_model(given.name, model=given.model, library=given.library)
    print_line(console, f"review doubtful photos with: {say(call_to_review(chosen, given))}")


_SHOWN = 3  # findings of each kind


def _run_clean(call: Call) -> None:
    given = CleanSettings(**call.settings)
    check_web(given.web)
    result = call.run(clean_photos, web=False)
    from clew.patterns.cleaning.findings import CleanPlace
    from clew.patterns.cleaning.session import decide_on_page

    if call.as_json:
        call.print_json(_describe(result))
        return
    for change in result.undone:
        print_line(call.console, f"undone: {change.action} {change.source}")
    if given.undo:
        return
    _print_findings(call.console, result)
    print_line(call.progress, f"lists: {result.json_file} and {result.list_file}")
    if result.report.exists():
        print_line(call.progress, f"report: {result.report}")
    place = CleanPlace.choose(given)
    if given.web and len(result):
        browser = given.browser and can_open_browser(call.console)
        with until_ctrl_c():
            shown = replace(given, browser=browser)
            decide_on_page(place, result.findings, shown, call.console, say)
    elif len(result):
        print_line(call.progress, f"decide about each of them with: {say(place.call())}")


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
            rows = [(finding.name, finding.reason) for finding in found[:_SHOWN]]
            if len(found) > _SHOWN:
                rows.append((f"... and {len(found) - _SHOWN:,} more", ""))
            print_table(console, ("", ""), rows)
    for note in findings.notes:
        print_line(console, f"note: {note}")


def _run_similar(call: Call) -> None:
    found = call.run(find_similar)
    if call.as_json:
        call.print_json([asdict(photo) for photo in found])
        return
    rows = ((photo.name, photo.label, f"{photo.similarity:.2f}") for photo in found)
    print_table(call.console, ("photo", "class", "similarity"), rows, numbers=(2,))


COMMANDS = {
    "review": (review_photos, _run_review),
    "clean": (clean_photos, _run_clean),
    "similar": (find_similar, _run_similar),
}
