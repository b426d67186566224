"""Opens the review of what a model or set has identified, and runs it at the terminal or on the
page, which is that of every session about photos."""

import io
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from rich.console import Console

from clew.base.errors import Call, InputError
from clew.base.settings import as_path
from clew.base.terminal import TextConsole, print_line
from clew.pages.review import ReviewApp
from clew.pages.server import LocalServer, open_server
from clew.patterns.identification.results import (
    IDENTIFIED_FILE,
    Identification,
    find_identified,
    find_newest,
    read_identified,
)
from clew.patterns.library.choose import Chosen, choose_model, find_classes_folder
from clew.patterns.library.pattern_set import read_results
from clew.patterns.library.placing import only_one
from clew.patterns.photos.decode import open_photo
from clew.patterns.photos.opening import PhotoError
from clew.patterns.photos.photo import natural_order
from clew.patterns.review.journal import DecisionJournal, Decisions, LabeledFolder
from clew.patterns.review.session import Queue, Review, Say, Session, make_queue
from clew.patterns.review.terminal import Dialogue, open_keys
from clew.patterns.settings import ReviewSettings

if TYPE_CHECKING:
    from fastapi import FastAPI


JOURNAL = "review.jsonl"
_MOST_BEHIND = 20  # earlier identifications that are counted


@dataclass(frozen=True, kw_only=True)
class ReviewResult:
    """The decisions of a review: `counts` of approved, corrected and skipped photos, `left` the
    number not yet reviewed, `folder` where the photos were put."""

    counts: dict[str, int]
    left: int
    folder: str


def run_review(
    given: ReviewSettings, console: Console | None = None, say: Say = str
) -> ReviewResult:
    """Ask a person, in the terminal or in the browser; `say` gives the text of a call for hints.
    Raises what `open_review` does."""
    console = console or TextConsole(soft_wrap=True)
    chosen = choose_model(given.name, model=given.model, library=given.library)
    with open_review(chosen, given) as opened:
        for line in opened.queue.tell(say):
            print_line(console, line)
        if opened.queue.questions:
            try:
                _ask(opened, given, console, say)
            finally:
                console.print("")
                for line in opened.tell_end(say):
                    print_line(console, line)
        left = len(opened.queue.questions) - opened.place
        return ReviewResult(counts=dict(opened.counts()), left=left, folder=opened.folder)


def _ask(opened: Review, given: ReviewSettings, console: Console, say: Say) -> None:
    if not given.web:
        keys = open_keys(sys.stdin, lambda prompt: print_line(console, prompt))
        Dialogue(console, opened, keys).run()
        return
    with open_page(opened, given.port, say) as server:
        print_line(console, f"review page: {server.address}")
        print_line(console, "finish there or press Ctrl-C here; your decisions are saved")
        if given.browser:
            webbrowser.open(server.address)
        server.run()


@contextmanager
def open_review(chosen: Chosen, given: ReviewSettings) -> Iterator[Review]:
    """Open the review and lock it against other processes.

    Raises InputError when nothing was identified yet or the folder for the photos is unknown,
    StoreLockedError.
    """
    candidates = _find_identified(chosen, given)
    classes = _open_classes(chosen, given)
    message = (
        f'another review of "{chosen.home}" is running: finish that one first (q at the terminal, '
        '"Finish" on the page).'
    )
    with only_one(chosen.home / ".review.lock", message):
        journal = DecisionJournal(chosen.home / JOURNAL)
        decisions = Decisions(journal, classes.folder, classes=classes)
        identification, queue = _choose(candidates, journal, every=given.every)
        yield Review(
            queue,
            decisions,
            _list_classes(identification, chosen, classes),
            moves=given.move,
            next_call=_call_to_train(chosen, given),
            again_call=call_to_review(chosen, given),
        )


def _find_identified(chosen: Chosen, given: ReviewSettings) -> list[Path]:
    """What may be reviewed, the newest first."""
    path = as_path(given.identified)
    if path is not None and not path.exists():
        raise InputError(
            f'there is no "{path}": give the output folder of "clew patterns identify".'
        )
    if path is not None:
        return [path / IDENTIFIED_FILE if path.is_dir() else path]
    found = find_identified(chosen.home)
    if not found:
        raise InputError(
            "there is nothing to review: no photos have been identified yet. Run ",
            chosen.call_to_identify(),
            " first.",
        )
    return found


def _choose(
    files: list[Path], journal: DecisionJournal, *, every: bool
) -> tuple[Identification, Queue]:
    """The newest that still has questions; if none has, the newest. What waits in those before it
    is counted."""
    opened = map(read_identified, files)
    asked = ((one, make_queue(one, journal, every=every)) for one in opened)
    newest = next(asked)
    chosen = next((pair for pair in chain([newest], asked) if pair[1].questions), newest)
    # A photo that was identified again is asked about once.
    now = {photo.path for photo in chosen[1].questions}
    older = {photo.path for _, queue in islice(asked, _MOST_BEHIND) for photo in queue.questions}
    return chosen[0], replace(chosen[1], behind=len(older - now))


def _open_classes(chosen: Chosen, given: ReviewSettings) -> LabeledFolder:
    folder = chosen.classes_folder
    if given.data is not None:
        folder = find_classes_folder(Path(given.data))
    if folder is None:
        raise InputError(
            f'the folder of photos that "{chosen.model}" was trained on no longer exists: set '
            "`data` to a folder to add the photos to, with one subfolder per class."
        )
    if not folder.is_dir():
        raise InputError(
            f'there is no folder "{folder}": give a folder with one subfolder per class.'
        )
    own = chosen.pattern_set if given.data is None else None
    return LabeledFolder(folder, None if own is None else own.add)


def _list_classes(
    identification: Identification, chosen: Chosen, classes: LabeledFolder
) -> list[str]:
    """The classes to choose from: those of the model, and those whose folders were added since."""
    trained = (
        identification.settings.get("classes") or read_results(chosen.model).get("classes") or []
    )
    guessed = {label for photo in identification.photos for label, _ in photo.best}
    return sorted({*map(str, trained), *guessed, *classes.labels()}, key=natural_order)


def _call_to_train(chosen: Chosen, given: ReviewSettings) -> Call:
    """The call that trains again from the last weights."""
    if chosen.pattern_set is not None and given.data is None:
        return chosen.pattern_set.call("train", name=chosen.pattern_set.name)
    trained_on = read_results(chosen.model).get("data", {}).get("folder")
    folder = given.data or trained_on or chosen.classes_folder
    names = (chosen.model.with_name(f"{chosen.model.name}-{number}") for number in range(2, 10_000))
    out = next(name for name in names if not name.exists())
    places = {"data": folder, "start_from": chosen.model, "out": out}
    return Call("clew.patterns.train", (), {name: str(path) for name, path in places.items()})


def call_to_review(chosen: Chosen, given: ReviewSettings) -> Call:
    """The call that asks the remaining questions, without identifying again."""
    newest, identified = find_newest(chosen.home), as_path(given.identified)
    is_newest = identified in (None, newest, newest and newest.parent)
    wishes: dict[str, object] = {
        "identified": None if is_newest else str(identified),
        "data": given.data and str(given.data),
        "move": given.move,
        "every": given.every,
        "web": given.web,
    }
    return chosen.call_to_review({name: value for name, value in wishes.items() if value})


_QUALITY = 88
_SHARED = {"review.css": ("clew.patterns.review", "page.css")}


@contextmanager
def open_page(session: Session, port: int = 0, say: Say = str) -> Iterator[LocalServer]:
    """A server for the page, which stops when a person has finished there; port 0 is any free port.
    `say` gives the text of a call, for the page's hints.

    Raises InputError when the port is taken, or the packages of the extra "web" are missing.
    """
    with open_server(lambda stop: _build_app(session, say, stop), port) as server:
        yield server


def _build_app(session: Session, say: Say, on_done: Callable[[], None]) -> "FastAPI":
    from fastapi import HTTPException, Response

    built = ReviewApp(session.lock, lambda: session.describe(say), on_done)

    @built.app.get("/{size}/{number}")
    @built.app.get("/{size}/{number}/{which}")
    def photo(size: str, number: int, which: int = 0) -> Response:
        path = session.path(number, other=which == 1) if which in (0, 1) else None
        if path is None or size not in session.SIDES:
            raise HTTPException(404)
        try:
            content = encode_photo(path, side=session.SIDES[size])
        except PhotoError as error:
            return Response(error.reason, status_code=410, media_type="text/plain")
        headers = {"Cache-Control": "private, max-age=86400"}
        return Response(content, media_type="image/jpeg", headers=headers)

    @built.app.get("/report")
    def report() -> Response:
        if session.report is None or not session.report.is_file():
            raise HTTPException(404)
        # It has its own scripts, and may reach nothing of this server.
        headers = {"Content-Security-Policy": "sandbox allow-scripts"}
        return Response(session.report.read_bytes(), media_type="text/html", headers=headers)

    @built.app.post("/answer")
    def answer(given: session.Answer) -> Response:  # type: ignore[name-defined]
        return built.decide(lambda: session.is_current(given), lambda: session.carry_out(given))

    return built.serve_page(session.PACKAGE, _SHARED)


def encode_photo(path: Path, *, side: int) -> bytes:
    """A JPEG that any browser shows, no side longer than `side`. Raises PhotoError.

    No metadata of the file is sent: no location, no date, nothing but pixels.
    """
    picture = open_photo(path, at_least=side)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()
