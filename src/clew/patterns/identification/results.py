"""What each photo of a folder shows: identified.json, one line per photo, and identified.csv for a
spreadsheet. Written as the predictions come, so that memory does not grow with the folder; review
reads the first again."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, TypedDict

import numpy as np
from jaxtyping import Int64

from clew.base.cores import count_cores
from clew.base.errors import InputError, StoreError
from clew.base.typed_json import Bounds, read_as, to_json, wrong
from clew.patterns.photos.photo import Fault
from clew.storage.reading import open_regular, parse_json, read_json
from clew.storage.text_files import csv_text

IDENTIFIED_FILE, IDENTIFIED_FOLDER = "identified.json", "identified"
MADE_BY = "clew patterns identify"
_MAX_BYTES, _MAX_LINE_BYTES = 1 << 30, 1 << 24
# How our table starts; the other files contain MADE_BY.
TABLE_HEAD = "name,class,probability,doubtful,second,second_probability,fault"
# What the tables of earlier versions do not have.
_MORE_COLUMNS = "unknown,typicality"


@dataclass(frozen=True, kw_only=True, slots=True)
class Identified:
    """One photo. `best` are its most likely classes with their probabilities, in order; it is empty
    if there is a `fault`. `path` is absolute, `name` is what users see. `correction` is the class
    that a person gave the photo while the model was served. A photo that is `unknown`, unlike every
    class, is doubtful too; `typicality` is that of `Prediction`."""

    name: str
    path: Path
    best: tuple[tuple[str, float], ...]
    doubtful: bool
    fault: Fault | None = None
    correction: str | None = None
    unknown: bool = False
    typicality: float | None = None

    @property
    def label(self) -> str | None:
        """The most likely class; None where there is a fault."""
        return self.best[0][0] if self.best else None

    @property
    def confidence(self) -> float | None:
        """The probability of `label`."""
        return self.best[0][1] if self.best else None


_Share = Annotated[float, Bounds(least=0, most=1)]
_Guess = TypedDict("_Guess", {"class": str, "probability": _Share})


class _Told(TypedDict):
    kind: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class _Record:
    """A photo in the file. Raises ValueError if it is not one that `_to_record` made."""

    name: str
    path: str
    best: list[_Guess]
    doubtful: bool
    fault: _Told | None = None
    correction: str | None = None
    unknown: bool = False
    typicality: _Share | None = None

    def __post_init__(self) -> None:
        if (self.fault is None) != bool(self.best) or "\0" in self.path:
            raise wrong("photo", self.path)


@dataclass(frozen=True, kw_only=True)
class Identification:
    """A whole identified.json. `settings` has folder, model, threshold, top_k, classes, ..."""

    file: Path
    settings: dict[str, Any]
    photos: tuple[Identified, ...]


def read_identified(path: Path) -> Identification:
    """Raises StoreError when the file is missing or was not written by identify."""
    try:
        content = read_as(dict[str, Any], read_json(path, max_bytes=_MAX_BYTES, encodable=False))
        settings = _read_settings(content)
        records = read_as(list[_Record], content.get("photos"), "photos")
        photos = tuple(map(_from_record, records))
        return Identification(file=path, settings=settings, photos=photos)
    except (OSError, ValueError) as error:
        raise StoreError(
            f'"{path}" is not a valid result of "clew patterns identify" ({error}): run "clew '
            'patterns identify FOLDER" again.'
        ) from None


def find_identified(folder: Path) -> list[Path]:
    """Every identified.json below `folder`/identified (of a set or of a run's output), the newest
    first."""
    files = (folder / IDENTIFIED_FOLDER).glob(f"*/{IDENTIFIED_FILE}")
    return sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True)


def find_newest(folder: Path) -> Path | None:
    """None if nothing was identified yet."""
    return next(iter(find_identified(folder)), None)


def read_settings(path: Path) -> dict[str, Any] | None:
    """The settings alone, from the first line; None if there is no such file, or it is damaged."""
    try:
        with open_regular(path) as file:
            line = file.readline(_MAX_LINE_BYTES).rstrip()
        return _read_settings(read_as(dict[str, Any], parse_json(line + b"]}", encodable=False)))
    except (OSError, ValueError):
        return None


def _read_settings(content: dict[str, Any]) -> dict[str, Any]:
    settings = read_as(dict[str, Any], content.get("settings"), "settings")
    read_as(list[str] | None, settings.get("classes"), "settings.classes")
    read_as(str | None, settings.get("folder"), "settings.folder")
    return settings


class IdentifiedWriter:
    """Writes the lines of an identified.json into an open file, one call per photo."""

    def __init__(self, file: IO[bytes], settings: dict[str, Any]) -> None:
        self._file = file
        opening = to_json({"made_by": MADE_BY, "settings": settings, "photos": []}).encode()
        self._place = file.write(opening.removesuffix(b"]}"))
        self._is_first = True

    def add(self, photo: Identified) -> int:
        """Write one photo; returns the offset of its line in the file, for `read_entry`."""
        line = to_json(_to_record(photo)).encode()
        between = b"\n" if self._is_first else b",\n"
        self._is_first = False
        begin = self._place + len(between)
        self._place += self._file.write(between + line)
        return begin

    def end(self, counts: dict[str, int]) -> None:
        self._file.write(b'\n],"counts":' + to_json(counts).encode() + b"}\n")


def read_entry(file: IO[bytes], place: int) -> Identified:
    """One photo of a finished file, by the offset that `IdentifiedWriter.add` returned."""
    file.seek(place)
    return _from_record(
        read_as(_Record, parse_json(file.readline().rstrip(b",\n"), encodable=False))
    )


def _to_record(photo: Identified) -> dict[str, Any]:
    best = [{"class": label, "probability": round(value, 6)} for label, value in photo.best]
    fault = photo.fault and {"kind": photo.fault.kind, "reason": photo.fault.reason}
    more = {} if photo.correction is None else {"correction": photo.correction}
    return {
        "name": photo.name,
        "path": str(photo.path),
        "best": best,
        "doubtful": photo.doubtful,
        "fault": fault,
        **more,
        "unknown": photo.unknown,
        "typicality": None if photo.typicality is None else round(photo.typicality, 6),
    }


def _from_record(record: _Record) -> Identified:
    told = record.fault
    fault = told and Fault(name=record.name, label=None, kind=told["kind"], reason=told["reason"])
    return Identified(
        name=record.name,
        path=Path(record.path),
        best=tuple((one["class"], one["probability"]) for one in record.best),
        doubtful=record.doubtful,
        fault=fault or None,
        correction=record.correction,
        unknown=record.unknown,
        typicality=record.typicality,
    )


def table_head() -> bytes:
    """How identified.csv starts: with the mark by which spreadsheets recognize UTF-8."""
    return f"\N{ZERO WIDTH NO-BREAK SPACE}{TABLE_HEAD},{_MORE_COLUMNS}\r\n".encode()


def table_row(photo: Identified) -> bytes:
    """A photo's line of identified.csv."""
    (label, chance), (second, second_chance) = [*photo.best, ("", None), ("", None)][:2]
    doubtful, unknown = (
        "" if photo.fault else "yes" if fact else "no" for fact in (photo.doubtful, photo.unknown)
    )
    row = (
        *(photo.name, label, _number(chance), doubtful, second, _number(second_chance)),
        *(photo.fault.reason if photo.fault else "", unknown, _number(photo.typicality)),
    )
    return csv_text([row], line_end="\r\n").encode()


def _number(probability: float | None) -> str:
    return "" if probability is None else f"{probability:.4f}"


_MOST_WORKERS = 8
PAGE_FILE, TABLE_FILE = "identified.html", "identified.csv"
SHEET_NAME = "contact_sheet"


def count_workers() -> int:
    """Threads that read photos, for the network and for thumbnails."""
    return min(_MOST_WORKERS, count_cores())


def sheet_file(page: int) -> str:
    """contact_sheet.jpg, contact_sheet_2.jpg, ...; `page` counts from 0."""
    return f"{SHEET_NAME}.jpg" if page == 0 else f"{SHEET_NAME}_{page + 1}.jpg"


def default_folder(home: Path, photos: Path) -> Path:
    """`home`/identified/NAME, where NAME is that of the photos' folder; if another folder of the
    same name was identified before, it keeps its place, and this one gets NAME-2."""
    photos = photos.resolve()
    name = photos.name or "photos"
    folder, number = home / IDENTIFIED_FOLDER / name, 1
    while not _is_free(folder, photos):
        number += 1
        folder = folder.with_name(f"{name}-{number}")
    return folder


def _is_free(folder: Path, photos: Path) -> bool:
    file = folder / IDENTIFIED_FILE
    settings = read_settings(file)
    return not file.exists() or (settings is not None and settings.get("folder") == str(photos))


def refuse_foreign(folder: Path) -> None:
    """Raise InputError if the results would overwrite files that clew did not write; results of an
    earlier run are replaced."""
    if folder.exists() and not folder.is_dir():
        raise InputError("it is a file. Give a folder.", setting="out", value=folder)
    ours = [folder / name for name in (IDENTIFIED_FILE, PAGE_FILE, TABLE_FILE)]
    for path in (*ours, *_sheets(folder)):
        if path.exists() and not _is_ours(path):
            raise InputError(
                f'"{path}" was not written by "{MADE_BY}", so it is not overwritten: choose '
                "another `out`, or move that file."
            )


def remove_sheets(folder: Path, pages: int) -> None:
    """Delete the surplus contact sheets of an earlier run."""
    kept = {sheet_file(page) for page in range(pages)}
    for path in _sheets(folder):
        if path.name not in kept and path.exists() and _is_ours(path):
            path.unlink()


def _sheets(folder: Path) -> list[Path]:
    numbered = [path for path in folder.glob(f"{SHEET_NAME}_*.jpg") if path.stem[14:].isdigit()]
    return [folder / sheet_file(0), *numbered]


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        opening = file.read(2048)
    return MADE_BY.encode() in opening or opening.lstrip(b"\xef\xbb\xbf").startswith(
        TABLE_HEAD.encode()
    )


_DOUBTFUL, _UNKNOWN, _FAULTY = -1, -2, -3
# The groups that a person should look at, in the order of the page.
_TO_LOOK_AT = (_UNKNOWN, _DOUBTFUL)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Photos that belong together: those of one class, or (`label` None) the doubtful ones; the
    unknown ones among these are a group of their own.

    `places` are the offsets of the lines of those that are shown, the least confident first;
    `count` is their total number.
    """

    label: str | None
    count: int
    places: Int64[np.ndarray, " shown"]
    is_unknown: bool = False


class Tally:
    """Takes the photos one by one."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = list(classes)
        self._numbers = {label: number for number, label in enumerate(classes)}
        self._groups, self._chances, self._places = array("i"), array("f"), array("q")

    def add(self, photo: Identified, place: int) -> None:
        self._groups.append(self._group_of(photo))
        self._chances.append(photo.best[0][1] if photo.best else 0.0)
        self._places.append(place)

    def _group_of(self, photo: Identified) -> int:
        if photo.fault is not None:
            return _FAULTY
        if photo.unknown:
            return _UNKNOWN
        return _DOUBTFUL if photo.doubtful else self._numbers[photo.best[0][0]]

    def counts(self) -> dict[str, int]:
        count = self._groups.count
        photos, faulty, unknown = len(self._groups), count(_FAULTY), count(_UNKNOWN)
        doubtful = count(_DOUBTFUL) + unknown
        identified = photos - faulty - doubtful
        names = ("photos", "identified", "doubtful", "unknown", "faulty")
        return dict(zip(names, (photos, identified, doubtful, unknown, faulty), strict=True))

    def class_counts(self) -> list[tuple[str, int]]:
        """The number of photos per class, without the doubtful ones."""
        groups = np.asarray(self._groups)
        counts = np.bincount(groups[groups >= 0], minlength=len(self._classes))
        return list(zip(self._classes, counts.tolist(), strict=True))

    def groups(self, most: int) -> list[Group]:
        """The unknown and the doubtful ones first, then class by class; at most `most` photos are
        shown in total.

        The first two get up to half of the room, since a person should look at them.
        """
        numbers = [*_TO_LOOK_AT, *range(len(self._classes))]
        members = [self._members(number) for number in numbers]
        sizes = [len(places) for places in members]
        ahead = len(_TO_LOOK_AT)
        first = min(sum(sizes[:ahead]), max(most // 2, most - sum(sizes[ahead:])))
        shares = [*share_out(sizes[:ahead], first), *share_out(sizes[ahead:], most - first)]
        together = zip(numbers, members, shares, strict=True)
        return [
            Group(
                label=self._classes[number] if number >= 0 else None,
                count=len(places),
                places=places[:share],
                is_unknown=number == _UNKNOWN,
            )
            for number, places, share in together
            if len(places)
        ]

    def doubtful(self, most: int) -> Int64[np.ndarray, " shown"]:
        """The offsets of the doubtful ones, the unknown ones first, then the least confident."""
        return np.concatenate([self._members(number) for number in _TO_LOOK_AT])[:most]

    def faulty(self, most: int) -> Int64[np.ndarray, " shown"]:
        """The offsets of the first faulty ones, in order."""
        groups, places = np.asarray(self._groups), np.asarray(self._places)
        return places[groups == _FAULTY][:most]

    def _members(self, number: int) -> Int64[np.ndarray, " members"]:
        chosen = np.flatnonzero(np.asarray(self._groups) == number)
        order = np.argsort(np.asarray(self._chances)[chosen], kind="stable")
        return np.asarray(self._places, np.int64)[chosen[order]]


def share_out(sizes: Sequence[int], room: int) -> list[int]:
    """How much of `room` each gets: the same for all, but none more than its size."""
    shares = [0] * len(sizes)
    for done, number in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[number] = min(sizes[number], -(-room // (len(sizes) - done)))
        room -= shares[number]
    return shares
