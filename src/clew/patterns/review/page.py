"""The page on which a person decides about photos: their pictures, and the answers."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from clew.pages.review import ReviewApp
from clew.pages.server import LocalServer, open_server
from clew.patterns.photos.decode import open_photo
from clew.patterns.photos.opening import PhotoError
from clew.patterns.review.session import Say, Session

if TYPE_CHECKING:
    from fastapi import FastAPI

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
