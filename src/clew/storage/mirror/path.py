"""The path of a folder in the cache that stands for a folder at a URL."""

from pathlib import Path, PosixPath

from clew.errors import InputError
from clew.storage.mirror.forked import open_reading
from clew.storage.places import Place

SCHEMES = ("s3:", "gs:", "az:")


class MirrorFolder(PosixPath):
    """A path like any other, `CACHE/s3:/bucket/prefix`, whose shards come from the URL when they
    are opened. In messages, `f"{folder}"` is the URL."""

    def __format__(self, spec: str) -> str:
        return format(self.url, spec)

    @property
    def url(self) -> str:
        at = self._scheme_at()
        return f"{self.parts[at]}//{'/'.join(self.parts[at + 1 :])}"

    @property
    def cache_dir(self) -> Path:
        """The folder of the whole cache."""
        return Path(*self.parts[: self._scheme_at()])

    @property
    def place(self) -> Place:
        return open_reading(self.url)

    def _scheme_at(self) -> int:
        """From the end: a cache may lie in a folder with such a name."""
        found = [at for at, part in enumerate(self.parts) if part in SCHEMES]
        return found[-1]


def mirror_of(url: str, cache_dir: Path) -> MirrorFolder:
    """Where the folder at a URL lies in a cache."""
    scheme, _, rest = url.partition("//")
    names = rest.split("/")
    if any(name in ("", ".", "..", *SCHEMES) for name in names):
        raise InputError(f'"{url}" has a part that no folder can be called: use another prefix.')
    return MirrorFolder(cache_dir, scheme, *names)
