"""clew patterns review"""

import os
import signal
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from clew.cli.errors import call_text
from clew.cli.patterns.library_flags import LIBRARY, Library, check_web
from clew.cli.printing import print_line
from clew.wording import counted

if TYPE_CHECKING:
    from clew.patterns.library.choose import Chosen
    from clew.patterns.review import Review, ReviewConfig

_EPILOG = "Example: `clew patterns review animals --web`"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(review)


def review(
    name: Annotated[
        str | None, typer.Argument(help="The set.  [default: the only one]", show_default=False)
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The folder of a trained model, instead of a set.")
    ] = None,
    web: Annotated[
        bool,
        typer.Option(
            "--web", callback=check_web, help="On a page of your browser, instead of the terminal."
        ),
    ] = False,
    port: Annotated[int, typer.Option(help="The page's port; 0 is any that is free.")] = 0,
    browser: Annotated[
        bool, typer.Option(help="Open the page in the browser by itself, where there is one.")
    ] = True,
    move: Annotated[
        bool,
        typer.Option("--move/--copy", help="Move the photos into their classes, or copy them."),
    ] = False,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Ask about sure photos too, and about those that were skipped before."
        ),
    ] = False,
    identified: Annotated[
        Path | None,
        typer.Option(
            help="The --output-dir of the identify to review.  [default: the newest with any left]",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The folder, with a folder a class, that takes the photos.  [default: the set's, "
            "or the one the model was trained on]",
            show_default=False,
        ),
    ] = None,
    library: Library = LIBRARY,
) -> None:
    """Look at the photos the model was in doubt about: approve, correct or skip, with one key each.

    Each goes into the right class at once; no photo is asked about twice. Then train again: it
    starts from the last weights. Whenever you stop, what you decided is kept.
    """
    from clew.patterns.library.choose import choose_model
    from clew.patterns.review import ReviewConfig

    config = ReviewConfig(identified=identified, data=data, every=every, move=move)
    chosen = choose_model(model=model, name=name, library=library)
    console = Console(highlight=False, soft_wrap=True)
    run_review(console, chosen, config, web=web, port=port, browser=browser)


def run_review(
    console: Console,
    chosen: "Chosen",
    config: "ReviewConfig",
    *,
    web: bool = False,
    port: int = 0,
    browser: bool = True,
) -> None:
    """Review what was identified, at the terminal or on a page; ends with what to run next."""
    from clew.patterns.review import open_review

    with open_review(chosen, config) as opened:
        _print_queue(console, opened)
        if opened.queue.questions:
            with _ctrl_c_ends():
                if web:
                    _serve(console, opened, port, browser)
                else:
                    _ask(console, opened)
            _print_end(console, opened, web=web)


@contextmanager
def _ctrl_c_ends() -> Iterator[None]:
    """Ctrl-C ends what is inside at once; steps before may have taken it over."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, before)


def _ask(console: Console, opened: "Review") -> None:
    from clew.patterns.review.keys import open_keys
    from clew.patterns.review.terminal import Dialogue

    def show(prompt: str) -> None:
        print_line(console, prompt)

    Dialogue(console, opened, open_keys(sys.stdin, show)).run()


def _serve(console: Console, opened: "Review", port: int, browser: bool) -> None:
    from clew.patterns.review.app import Hints, open_page

    again = f"{call_text(opened.again_call)} --web"
    hints = Hints(train=call_text(opened.next_call), again=again)
    with open_page(opened, port, hints) as server:
        print_line(console, f"the page: {server.address}")
        print_line(console, "finish there, or press Ctrl-C here: what you decided is kept")
        if browser and console.is_terminal and _has_screen():
            webbrowser.open(server.address)
        server.run()


def _has_screen() -> bool:
    """Elsewhere a browser might open inside this very terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _print_queue(console: Console, opened: "Review") -> None:
    from clew.patterns.review.session import name_some

    queue = opened.queue
    photos = counted(len(queue.questions), "photo")
    print_line(console, f"{photos} to look at, from {queue.source}")
    before = [
        f"{queue.decided:,} decided" if queue.decided else "",
        f"{queue.skipped:,} skipped (--all asks again)" if queue.skipped else "",
    ]
    if any(before):
        print_line(console, f"in earlier reviews: {', '.join(filter(None, before))}")
    if queue.gone:
        print_line(console, f"{len(queue.gone):,} not there any more: {name_some(queue.gone)}")
    if queue.faulty:
        print_line(console, f"{len(queue.faulty):,} could not be opened: {name_some(queue.faulty)}")
    if queue.sure:
        print_line(console, f"{queue.sure:,} that the model was sure of are not asked (--all asks)")


def _print_end(console: Console, opened: "Review", *, web: bool) -> None:
    from clew.patterns.review.session import tell_new_classes

    counts = opened.counts()
    told = [f"{counts[name]:,} {name}" for name in ("approved", "corrected", "skipped")]
    left = len(opened.queue.questions) - opened.place
    again = f"{call_text(opened.again_call)}{' --web' if web else ''}"
    rest = f"; {left:,} left, go on with: {again}" if left else ""
    console.print("")
    print_line(console, f"{', '.join(told)}{rest}")
    if opened.new_classes():
        print_line(console, tell_new_classes(opened.new_classes()))
    if counts["approved"] or counts["corrected"]:
        print_line(console, f"the photos are in {opened.folder}")
        print_line(
            console, f"train again, from the last weights, with: {call_text(opened.next_call)}"
        )
