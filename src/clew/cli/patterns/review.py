"""clew patterns review"""

import signal
import sys
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from clew.base.texts import counted
from clew.cli.commands import Call, Command
from clew.cli.errors import call_text
from clew.cli.printing import print_line
from clew.cli.serve import check_web, open_browser
from clew.cli.signals import exit_interrupted
from clew.patterns.workflow import review_photos

if TYPE_CHECKING:
    from clew.patterns.library.choose import Chosen
    from clew.patterns.review import Review, ReviewConfig

COMMAND = Command(
    function=review_photos,
    name="patterns review",
    example="clew patterns review animals --web",
    groups={
        "Photos": ("model", "library", "identified", "every", "data", "move"),
        "Page": ("web", "port", "browser"),
    },
)


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    from clew.patterns.library.choose import choose_model
    from clew.patterns.review import ReviewConfig

    settings = dict(call.settings)
    check_web(settings["web"])
    which = {name: settings.pop(name) for name in ("name", "model", "library")}
    asked = {name: settings.pop(name) for name in ("identified", "data", "every", "move")}
    run_review(call.console, choose_model(**which), ReviewConfig(**asked), **settings)


def run_review(
    console: Console,
    chosen: "Chosen",
    config: "ReviewConfig",
    *,
    web: bool = False,
    port: int = 0,
    browser: bool = True,
) -> None:
    """Review what was identified, in the terminal or the browser, then print the next command."""
    from clew.patterns.review import open_review

    with open_review(chosen, config) as opened:
        _print_queue(console, opened)
        if not opened.queue.questions:
            return
        try:
            if web:
                _serve(console, opened, port, browser)
            else:
                _ask(console, opened)
        except KeyboardInterrupt as interrupt:
            _print_end(console, opened, web=web)
            if getattr(interrupt, "number", signal.SIGINT) != signal.SIGINT:
                raise exit_interrupted(interrupt) from None
        else:
            _print_end(console, opened, web=web)


def _ask(console: Console, opened: "Review") -> None:
    from clew.patterns.review.terminal import Dialogue, open_keys

    def show(prompt: str) -> None:
        print_line(console, prompt)

    Dialogue(console, opened, open_keys(sys.stdin, show)).run()


def _serve(console: Console, opened: "Review", port: int, browser: bool) -> None:
    from clew.patterns.review.app import Hints, open_page

    again = f"{call_text(opened.again_call)} --web"
    hints = Hints(train=call_text(opened.next_call), again=again)
    with open_page(opened, port, hints) as server:
        print_line(console, f"review page: {server.address}")
        print_line(console, "finish there or press Ctrl-C here; your decisions are saved")
        open_browser(console, server.address, wanted=browser)
        server.run()


def _print_queue(console: Console, opened: "Review") -> None:
    from clew.patterns.review.session import name_some

    queue = opened.queue
    photos = counted(len(queue.questions), "photo")
    print_line(console, f"{photos} to review, from {queue.source}")
    before = [
        f"{queue.decided:,} reviewed" if queue.decided else "",
        f"{queue.skipped:,} skipped (--all includes them)" if queue.skipped else "",
    ]
    if any(before):
        print_line(console, f"in earlier reviews: {', '.join(filter(None, before))}")
    if queue.gone:
        print_line(console, f"no longer found: {len(queue.gone):,} ({name_some(queue.gone)})")
    if queue.faulty:
        print_line(console, f"{len(queue.faulty):,} could not be opened: {name_some(queue.faulty)}")
    if queue.sure:
        print_line(
            console,
            f"{counted(queue.sure, 'confident prediction')} not shown (--all includes them)",
        )


def _print_end(console: Console, opened: "Review", *, web: bool) -> None:
    from clew.patterns.review.session import describe_new_classes

    counts = opened.counts()
    told = [f"{counts[name]:,} {name}" for name in ("approved", "corrected", "skipped")]
    left = len(opened.queue.questions) - opened.place
    again = f"{call_text(opened.again_call)}{' --web' if web else ''}"
    rest = f"; {left:,} left, continue with: {again}" if left else ""
    console.print("")
    print_line(console, f"{', '.join(told)}{rest}")
    if opened.new_classes():
        print_line(console, describe_new_classes(opened.new_classes()))
    if counts["approved"] or counts["corrected"]:
        print_line(console, f"the photos are in {opened.folder}")
        print_line(
            console, f"train again from the last weights with: {call_text(opened.next_call)}"
        )
