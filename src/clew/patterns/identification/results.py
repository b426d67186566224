"""What each photo of a folder shows: identified.json, one line per photo, and identified.csv for a
spreadsheet. Written as the predictions come, so that memory does not grow with the folder; review
reads the first again."""

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

from clew.base.errors import StoreError
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


@dataclass(frozen=True, kw_only=True)
class _Record:
    """A photo in the file. Raises ValueError if it is not one that `_to_record` made."""

    name: str
    path: str
    best: list[dict[str, str | float]]
    doubtful: bool
    fault: dict[str, str] | None = None
    correction: str | None = None
    unknown: bool = False
    typicality: Annotated[float, Bounds(least=0, most=1)] | None = None

    def __post_init__(self) -> None:
        for one in self.best:
            label, probability = one.get("class"), one.get("probability")
            if not isinstance(label, str) or not isinstance(probability, float):
                raise wrong("best", self.best)
            if not 0 <= probability <= 1:
                raise wrong("probability", probability)
        if self.fault is not None and not {"kind", "reason"} <= self.fault.keys():
            raise wrong("fault", self.fault)
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
        opening = _as_json({"made_by": MADE_BY, "settings": settings, "photos": []})
        self._place = file.write(opening.removesuffix(b"]}"))
        self._is_first = True

    def add(self, photo: Identified) -> int:
        """Write one photo; returns the offset of its line in the file, for `read_entry`."""
        line = _as_json(_to_record(photo))
        between = b"\n" if self._is_first else b",\n"
        self._is_first = False
        begin = self._place + len(between)
        self._place += self._file.write(between + line)
        return begin

    def end(self, counts: dict[str, int]) -> None:
        self._file.write(b'\n],"counts":' + _as_json(counts) + b"}\n")


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
        best=tuple((str(one["class"]), float(one["probability"])) for one in record.best),
        doubtful=record.doubtful,
        fault=fault or None,
        correction=record.correction,
        unknown=record.unknown,
        typicality=record.typicality,
    )


def _as_json(content: dict[str, Any]) -> bytes:
    return to_json(content).encode()


class TableWriter:
    """Writes rows into an open file, starting with the mark by which spreadsheets recognize
    UTF-8."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        file.write(f"\N{ZERO WIDTH NO-BREAK SPACE}{TABLE_HEAD},{_MORE_COLUMNS}\r\n".encode())

    def add(self, photo: Identified) -> None:
        best = [*photo.best, ("", None), ("", None)]
        (label, chance), (second, second_chance) = best[:2]
        fault = photo.fault.reason if photo.fault else ""
        doubtful, unknown = (
            "" if photo.fault else "yes" if fact else "no"
            for fact in (photo.doubtful, photo.unknown)
        )
        row = (
            photo.name,
            label,
            _number(chance),
            doubtful,
            second,
            _number(second_chance),
            fault,
            unknown,
            _number(photo.typicality),
        )
        self._file.write(csv_text([row], line_end="\r\n").encode())


def _number(probability: float | None) -> str:
    return "" if probability is None else f"{probability:.4f}"
