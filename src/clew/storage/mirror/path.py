"""Paths on this machine that stand for a URL."""

from pathlib import Path, PosixPath
from typing import TypeVar

from clew.base.errors import InputError
from clew.storage.mirror.forked import open_reading
from clew.storage.places import Place

SCHEMES = ("s3:", "gs:", "az:")

Copy = TypeVar("Copy", bound="UrlCopy")


class UrlCopy(PosixPath):
    """A path like any other, `ROOT/s3:/bucket/prefix`. In messages, `f"{path}"` is the URL."""

    def __format__(self, spec: str) -> str:
        return format(self.url, spec)

    @property
    def url(self) -> str:
        at = self._scheme_at()
        return f"{self.parts[at]}//{'/'.join(self.parts[at + 1 :])}"

    @property
    def base(self) -> Path:
        """The folder on this machine in which all copies lie."""
        return Path(*self.parts[: self._scheme_at()])

    def _scheme_at(self) -> int:
        """From the end: a cache may lie in a folder with such a name."""
        found = [at for at, part in enumerate(self.parts) if part in SCHEMES]
        return found[-1]


class MirrorFolder(UrlCopy):
    """A folder in the cache, whose shards come from the URL when they are opened."""

    @property
    def cache_dir(self) -> Path:
        return self.base

    @property
    def place(self) -> Place:
        return open_reading(self.url)


def copy_of(url: str, root: Path, kind: type[Copy]) -> Copy:
    """Where the folder at a URL lies on this machine."""
    scheme, _, rest = url.partition("//")
    names = rest.split("/")
    if any(name in ("", ".", "..", *SCHEMES) for name in names):
        raise InputError(f'"{url}" has a part that no folder can be called: use another prefix.')
    return kind(root, scheme, *names)
