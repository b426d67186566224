"""The web app that every review has: its state, the end, and the page's files. What is decided, and
on what, is the review's own."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

from clew.base.errors import ClewError, InputError

if TYPE_CHECKING:
    from fastapi import FastAPI, Response

logger = logging.getLogger(__name__)

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
# The page's own files by their address, and those that pages share.
_OWN = {"": "page.html", "page.css": "page.css", "page.js": "page.js"}
_SHARED = ("review.js", "search.js")


class ReviewApp:
    """`describe` gives everything that the page shows. Add `app`'s own routes before
    `serve_page`."""

    def __init__(
        self,
        lock: "Lock | RLock",
        describe: Callable[[], Mapping[str, Any]],
        on_done: Callable[[], None],
    ) -> None:
        from fastapi import BackgroundTasks, FastAPI, Response
        from fastapi.exceptions import RequestValidationError

        self._lock, self._describe = lock, describe
        self.app = app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

        @app.exception_handler(RequestValidationError)
        def explain(_: object, error: RequestValidationError) -> Response:
            with lock:
                return self._reply(422, error=_what_is_wrong(error.errors()))

        @app.get("/state")
        def state() -> Response:
            with lock:
                return self._reply()

        @app.post("/done")
        def done(after: BackgroundTasks) -> dict[str, bool]:
            after.add_task(on_done)
            return {"done": True}

    def decide(self, is_open: Callable[[], bool], carry_out: Callable[[], str]) -> "Response":
        """Carry out a decision, and reply with its message and the state. One that `is_open` does
        not hold for changes nothing (a key pressed twice, a second tab)."""
        with self._lock:
            status, content = _try(is_open, carry_out)
            return self._reply(status, **content)

    def serve_page(
        self, package: str, borrowed: Mapping[str, tuple[str, str]] | None = None
    ) -> "FastAPI":
        """Add the files of the package's page, and return the whole application. `borrowed` are
        files of other packages: the package and the name there, by the name here."""
        from fastapi import HTTPException, Response

        places = {name: (package, file) for name, file in _OWN.items()}
        places |= {name: ("clew.pages", name) for name in _SHARED} | dict(borrowed or {})

        @self.app.get("/{name:path}")
        def page(name: str) -> Response:
            if name not in places:
                raise HTTPException(404)
            home, file = places[name]
            kind = _KINDS[file.rpartition(".")[2]]
            return Response(files(home).joinpath(file).read_bytes(), media_type=kind)

        return self.app

    def _reply(self, status: int = 200, **more: str) -> "Response":
        """The current state. Escaped: it may hold what is not valid text."""
        from fastapi import Response

        content = json.dumps({**self._describe(), **more})
        return Response(content, status_code=status, media_type="application/json")


def _what_is_wrong(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first error of a request, without what it contained."""
    where = ".".join(str(part) for part in errors[0]["loc"][1:])
    return f"The request is not valid: {where or 'body'}: {errors[0]['msg']}. Nothing was changed."


def _try(is_open: Callable[[], bool], carry_out: Callable[[], str]) -> tuple[int, dict[str, str]]:
    """The status, and the message."""
    if not is_open():
        return 409, {"error": "The page was out of date: it shows the current state now."}
    try:
        return 200, {"message": carry_out()}
    except InputError as error:
        return 400, {"error": str(error)}
    except ClewError as error:
        return 507, {"error": str(error)}
    except OSError as error:
        logger.warning("a decision could not be saved: %s", error)
        return 507, {"error": f'"{error.filename}": {error.strerror}. Nothing was changed.'}
