"""The files of an API's page."""

from collections.abc import Iterable
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript"}
_SHARED = ("api.css", "api.js")


class StaticPage:
    """page.html of a package's folder "static" at "/", and the files `names` below "/page/", with
    those that every page has. They need no API key."""

    def __init__(self, package: str, names: Iterable[str]) -> None:
        folder, shared = files(package).joinpath("static"), files("clew.pages.api")
        self._files = {
            "/": folder.joinpath("page.html"),
            **{f"/page/{name}": folder.joinpath(name) for name in names},
            **{f"/page/{name}": shared.joinpath(name) for name in _SHARED},
        }

    def read(self, path: str) -> tuple[bytes, str] | None:
        """A file by its path on the server, and its type; None if there is none."""
        found = self._files.get(path)
        if found is None:
            return None
        return found.read_bytes(), _TYPES[found.name.rpartition(".")[2]]

    def read_all(self) -> dict[str, bytes]:
        """Every file by its path on the server."""
        return {path: found.read_bytes() for path, found in self._files.items()}

    def add_to(self, app: "FastAPI") -> None:
        from fastapi import HTTPException, Response

        @app.get("/")
        @app.get("/page/{name}")
        def static(name: str = "") -> Response:
            found = self.read(f"/page/{name}" if name else "/")
            if found is None:
                raise HTTPException(404)
            return Response(found[0], media_type=found[1])
