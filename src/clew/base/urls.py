"""URLs of object stores in the type of a path, so that settings and results have one type for where
something lies. Only `clew.storage.places` can read or write there."""

import os
import re
from pathlib import Path, PosixPath
from urllib.parse import unquote, urlsplit

from clew.base.errors import InputError

# A Path keeps one slash of the two.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(?=/)")
_COLLAPSED = re.compile(r"(s3|gs|az):/(?!/)")
_COLLAPSED_FILE = re.compile(r"\Afile:/(?!/)")


class UrlPath(PosixPath):
    """A URL that can be joined with names and shown. On disk there is nothing at it."""

    def __str__(self) -> str:
        return _restore(super().__str__())

    def __fspath__(self) -> str:
        return str(self)


def as_path(where: str | os.PathLike[str]) -> Path:
    """What a user gave: a `UrlPath` for the URL of an object store, else a Path."""
    text = _COLLAPSED_FILE.sub("file:///", os.fspath(where))
    if isinstance(where, UrlPath):
        return where
    if is_url(text):
        return UrlPath(_without_secrets(_restore(text)))
    return where if isinstance(where, Path) and _scheme_of(text) != "file" else local_path(text)


def is_url(where: str | os.PathLike[str]) -> bool:
    """Whether this names something in an object store. A path, or a `file://` URL, does not."""
    text = os.fspath(where)
    return _scheme_of(text) not in ("", "file") or _COLLAPSED.match(text) is not None


def local_path(where: str | os.PathLike[str]) -> Path:
    """The path that a path or a `file://` URL names; raises InputError for other URLs."""
    text = _COLLAPSED_FILE.sub("file:///", os.fspath(where))
    if is_url(text):
        raise InputError(f'give a path on this machine, not "{shown_url(_restore(text))}".')
    if _scheme_of(text) != "file":
        return Path(text)
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise InputError(f'write three slashes, "file:///folder", not "{shown_url(text)}".')
    return Path(unquote(parts.path))


def shown_url(text: str) -> str:
    """The URL without what may be a password."""
    parts = urlsplit(text)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _without_secrets(text: str) -> str:
    """Refuses what would be written into manifests and logs."""
    parts = urlsplit(text)
    if parts.scheme.lower() not in ("s3", "gs", "az"):
        raise InputError(
            f'"{shown_url(text)}" is not a place that clew can use: give a folder, or a URL that '
            "starts with s3://, gs://, az:// or file://."
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InputError(
            f'give "{shown_url(text)}" without a user name, a password or a query: credentials '
            "come from the environment or the provider's own files."
        )
    if not parts.netloc:
        raise InputError(f'"{shown_url(text)}" names no bucket: write "s3://bucket/prefix".')
    path = re.sub("/+", "/", parts.path).strip("/")
    return f"{parts.scheme.lower()}://{parts.netloc}" + (f"/{path}" if path else "")


def _restore(text: str) -> str:
    return _COLLAPSED.sub(r"\1://", text, count=1)


def _scheme_of(text: str) -> str:
    match = _URL.match(text)
    return match[1].lower() if match else ""


def resolved(path: Path) -> Path:
    """The path as a process in another folder has to give it."""
    return path if isinstance(path, UrlPath) else path.resolve()
