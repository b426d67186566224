"""The page of `clew patterns clean`: findings with their photos, and decisions about them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from clew.base.errors import Call
from clew.base.texts import for_terminal, whole_percent
from clew.pages.review import ReviewApp
from clew.pages.server import LocalServer, open_server
from clew.patterns.cleaning.findings import KINDS, TITLES
from clew.patterns.cleaning.report import REPORT
from clew.patterns.cleaning.session import Cleaning
from clew.patterns.review.app import reply_photo

if TYPE_CHECKING:
    from fastapi import FastAPI

_SIDES = {"photos": 1200, "thumbnails": 160}
_SHOWN = 40  # findings of each kind that the page knows at a time
_BORROWED = {"review.css": ("clew.patterns.review", "page.css")}


@dataclass(frozen=True, kw_only=True)
class PageDecision:
    """A person's decision about `finding`, whose number it is; `other` means its second photo.
    `question` is the number of decisions so far that the page knew."""

    question: int
    action: Literal["keep", "remove", "relabel", "move", "later", "undo"]
    finding: int = -1
    label: str = ""
    other: bool = False


@contextmanager
def open_clean_page(
    cleaning: Cleaning, port: int = 0, say: Callable[[Call], str] = str
) -> Iterator[LocalServer]:
    """A server for the page, which stops when a person has finished there; port 0 is any free port.
    `say` gives the text of a call, for the page's hints.

    Raises InputError when the port is taken, or the packages of the extra "web" are missing.
    """
    with open_server(lambda stop: _build_app(cleaning, say, stop), port) as server:
        yield server


def _build_app(
    cleaning: Cleaning, say: Callable[[Call], str], on_done: Callable[[], None]
) -> "FastAPI":
    from fastapi import HTTPException, Response

    built = ReviewApp(cleaning.lock, lambda: _describe_state(cleaning, say), on_done)

    @built.app.get("/{size}/{number}/{which}")
    def photo(size: Literal["photos", "thumbnails"], number: int, which: int) -> Response:
        path = cleaning.path(number, other=which == 1) if which in (0, 1) else None
        return reply_photo(path, side=_SIDES[size])

    @built.app.get("/report")
    def report() -> Response:
        path = cleaning.decisions.journal.path.with_name(REPORT)
        if not path.is_file():
            raise HTTPException(404)
        # It has its own scripts, and may reach nothing of this server.
        headers = {"Content-Security-Policy": "sandbox allow-scripts"}
        return Response(path.read_bytes(), media_type="text/html", headers=headers)

    @built.app.post("/answer")
    def answer(given: PageDecision) -> Response:
        return built.decide(lambda: _is_current(cleaning, given), lambda: _decide(cleaning, given))

    return built.serve_page("clew.patterns.cleaning", _BORROWED)


def _is_current(cleaning: Cleaning, given: PageDecision) -> bool:
    """Two people may decide about different findings at once; each is decided once, and "undo"
    means the decision that its page shows as the last one."""
    if given.action == "undo":
        return given.question == cleaning.place
    return cleaning.is_open(given.finding)


def _decide(cleaning: Cleaning, given: PageDecision) -> str:
    number, other = given.finding, given.other
    if given.action == "undo":
        return f"undone: {cleaning.undo().source}"
    if given.action == "keep":
        return cleaning.keep(number)
    if given.action == "later":
        return cleaning.put_off(number)
    if given.action == "remove":
        return cleaning.remove(number, other=other)
    if given.action == "move":
        return cleaning.move(number, given.label, other=other)
    return cleaning.relabel(number, given.label, other=other)


def _describe_state(cleaning: Cleaning, say: Callable[[Call], str]) -> dict[str, Any]:
    """Everything that the page shows. Photos are identified only by the finding's number."""
    waiting = {kind: cleaning.waiting(kind) for kind in KINDS}
    return {
        "place": cleaning.place,
        "total": cleaning.place + sum(map(len, waiting.values())),
        "kinds": [
            {"kind": kind, "title": TITLES[kind], "open": len(waiting[kind])} for kind in KINDS
        ],
        "findings": {
            kind: [_describe(cleaning, number) for number in numbers[:_SHOWN]]
            for kind, numbers in waiting.items()
        },
        "classes": [for_terminal(label) for label in cleaning.classes],
        "splits": sorted(cleaning.splits),
        "counts": cleaning.counts(),
        "can_undo": len(cleaning.decisions.journal) > 0,
        "folder": for_terminal(str(cleaning.data)),
        "removed": for_terminal(str(cleaning.decisions.removed)),
        "command": for_terminal(say(cleaning.next_call)),
        "again": for_terminal(say(cleaning.again_call)),
    }


def _describe(cleaning: Cleaning, number: int) -> dict[str, Any]:
    finding = cleaning.findings[number]
    photos = [(finding.name, finding.label)]
    if finding.other is not None:
        photos.append((finding.other, finding.other_label or ""))
    return {
        "number": number,
        "reason": for_terminal(finding.reason),
        "score": whole_percent(finding.score),
        "suggestion": finding.suggestion and for_terminal(finding.suggestion),
        "photos": [
            {
                "name": for_terminal(name),
                "label": for_terminal(label),
                "split": cleaning.split_of(name),
            }
            for name, label in photos
        ],
    }
