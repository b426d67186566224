"""From what a user gives (a path or a URL) to a place."""

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from clew.errors import InputError
from clew.storage.places.folder import FolderPlace
from clew.storage.places.place import Place

_REMOTE = ("s3", "gs", "az")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(where: str | os.PathLike[str]) -> bool:
    """Whether this names something in an object store. A path, or a `file://` URL, does not."""
    return _scheme_of(os.fspath(where)) not in ("", "file")


def local_path(where: str | os.PathLike[str]) -> Path:
    """The path that a path or a `file://` URL names; raises InputError for other URLs."""
    text = os.fspath(where)
    scheme = _scheme_of(text)
    if not scheme:
        return Path(text)
    if scheme != "file":
        raise InputError(f'give a folder on this machine, not "{_shown(text)}".')
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise InputError(f'write three slashes, "file:///folder", not "{_shown(text)}".')
    return Path(unquote(parts.path))


def open_place(where: str | os.PathLike[str]) -> Place:
    """The place at a path or URL (`s3://bucket/prefix`, `gs://`, `az://`, `file://`). Nothing is
    read yet. Raises InputError if it is no such URL, or obstore is not installed."""
    text = os.fspath(where)
    if not is_url(text):
        return FolderPlace(local_path(text))
    from clew.storage.places.objects import ObjectPlace  # obstore is optional

    return ObjectPlace(_checked(text))


def _scheme_of(text: str) -> str:
    return urlsplit(text).scheme.lower() if _URL.match(text) else ""


def _checked(text: str) -> str:
    """The URL without a slash at its end; errors do not show what may be a password."""
    parts = urlsplit(text)
    if parts.scheme.lower() not in _REMOTE:
        raise InputError(
            f'"{_shown(text)}" is not a place that clew can use: give a folder, or a URL that '
            "starts with s3://, gs://, az:// or file://."
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InputError(
            f'give "{_shown(text)}" without a user name, a password or a query: credentials come '
            "from the environment or the provider's own files."
        )
    if not parts.netloc:
        raise InputError(f'"{_shown(text)}" names no bucket: write "s3://bucket/prefix".')
    path = re.sub("/+", "/", parts.path).strip("/")
    return f"{parts.scheme.lower()}://{parts.netloc}" + (f"/{path}" if path else "")


def _shown(text: str) -> str:
    parts = urlsplit(text)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
