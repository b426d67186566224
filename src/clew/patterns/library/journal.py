"""What a set knows about its photos: the image digest of each, and what became of every source;
import.csv says the same for people.

One line of JSON per event, append-only: a killed import loses at most its last line. Nothing here
is essential: what is missing is recovered by reading the photos.
"""

import hashlib
import json
import os
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from clew.base.typed_json import Bounds, Count, read_as, wrong
from clew.patterns.library.placing import lies_inside
from clew.patterns.photos.decode import read_square
from clew.patterns.photos.photo import class_name, natural_order
from clew.storage.reading import open_regular, parse_json
from clew.storage.text_files import write_csv
from clew.storage.writing import append_to_file, disk_errors

PathText = Annotated[str, Bounds(most=4_096)]
JOURNAL, LISTING = "photos.jsonl", "import.csv"
_COLUMNS = ("file", "class", "result", "kind", "reason", "photo")
_ORDER = ("excluded", "added", "already there")
# Large enough that two photos of one thing differ, small enough for fast decoding of JPEGs.
_SIDE = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A photo of the set: `photo` is its path in the folder of photos ("cats/a b.jpg"). One that
    was `removed` when the set was cleaned is not imported again."""

    photo: PathText
    bytes: Count
    modified_ns: int
    digest: PathText
    removed: bool = False

    @property
    def label(self) -> str:
        return class_name(self.photo.split("/", 1)[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file to import, and its result; `photo` is its name in the set.

    `digest` is "" for a file that is not a valid photo, `result` for one that was only examined.
    """

    source: PathText
    label: PathText
    bytes: Count = 0
    modified_ns: int = 0
    digest: PathText = ""
    result: Literal["", "added", "already there", "excluded"] = ""
    kind: str = ""
    reason: str = ""
    photo: str = ""


class Journal:
    """The journal of one set, in memory and on disk."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL
        self.photos = folder / "photos"
        self.pictures: dict[str, Picture] = {}
        self.sources: dict[str, Source] = {}
        self._by_digest: dict[str, list[str]] = defaultdict(list)
        self.removed: set[str] = set()  # digests of images that cleaning has removed
        self._read_bytes = 0
        self.read_on()

    def read_on(self) -> None:
        """Reads what was appended since, by any process."""
        if not self._path.exists():
            return
        with open_regular(self._path) as file:
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # truncated by a kill; the next line completes it
                self._read_bytes += len(line)
                with suppress(ValueError):  # truncated too: the photo is read again
                    self._take(_read_event(parse_json(line, encodable=False)))

    def note(self, event: Picture | Source) -> None:
        """Record an event on disk and in memory."""
        self._take(event)
        line = json.dumps(asdict(event)) + "\n"  # names that are not UTF-8 come out as escapes
        with disk_errors(self._path.parent), append_to_file(self._path) as file:
            if _ends_in_a_cut_line(file):
                line = "\n" + line
            file.write(line.encode("ascii"))

    def add(self, path: Path, digest: str) -> str:
        """Record a photo of the set; returns its path in the folder of photos."""
        name, found = path.relative_to(self.photos).as_posix(), path.stat()
        size, modified = found.st_size, found.st_mtime_ns
        self.note(Picture(photo=name, bytes=size, modified_ns=modified, digest=digest))
        return name

    def find(self, digest: str) -> Picture | None:
        """A photo of the set with that image, if it is still there unchanged."""
        for name in self._by_digest[digest]:
            picture = self.pictures[name]
            if picture.digest == digest and self.is_there(picture):
                return picture
        return None

    def note_move(self, before: str, after: str | None) -> None:
        """Record that a photo is at another path now; None: that it was removed."""
        picture = self.pictures.get(before)
        if picture is None:  # it was not imported, and is known by its file
            return
        moved = replace(picture, photo=before if after is None else after, removed=after is None)
        self.note(moved)

    def is_there(self, picture: Picture) -> bool:
        try:
            found = os.stat(self.photos / picture.photo)
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns) == (picture.bytes, picture.modified_ns)

    def _take(self, event: Picture | Source) -> None:
        if isinstance(event, Source):
            self.sources[event.source] = event
            return
        self.pictures[event.photo] = event
        (self.removed.add if event.removed else self.removed.discard)(event.digest)
        if event.photo not in self._by_digest[event.digest]:
            self._by_digest[event.digest].append(event.photo)


def _read_event(found: Any) -> Picture | Source:
    entry = read_as(dict[str, Any], found)
    if entry.get("result") == "left out":  # as earlier versions wrote it
        entry = {**entry, "result": "excluded"}
    if "source" in entry:
        return read_as(Source, entry)
    picture = read_as(Picture, entry)
    if not lies_inside(picture.photo):
        raise wrong("photo", picture.photo)
    return picture


def _ends_in_a_cut_line(file: Any) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def digest_picture(path: Path) -> str:
    """A digest of the image, the same for any file format. Raises PhotoError."""
    return hashlib.blake2b(read_square(path, _SIDE).tobytes(), digest_size=16).hexdigest()


def write_listing(folder: Path, journal: Journal) -> Path:
    """Excluded files come first."""
    decided = [source for source in journal.sources.values() if source.result]
    decided.sort(key=lambda one: (_ORDER.index(one.result), natural_order(one.source)))
    path = folder / LISTING
    rows = ((one.source, one.label, one.result, one.kind, one.reason, one.photo) for one in decided)
    write_csv(path, _COLUMNS, rows)
    return path
