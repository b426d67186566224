"""The map of the photos beside a model: map.csv, one row per photo, and map.jpg, thumbnails of the
first of them."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from clew.base.errors import StoreError
from clew.storage.reading import open_regular
from clew.storage.text_files import read_csv, write_csv
from clew.storage.writing import replace_file

MAP_FILE, THUMBNAILS_FILE = "map.csv", "map.jpg"
_COLUMNS = ("name", "class", "split", "predicted", "x", "y")
_MAX_BYTES = 1 << 26


@dataclass(frozen=True, kw_only=True, slots=True)
class MapRow:
    """A photo with its position from 0 to 1."""

    name: str
    label: str
    split: str
    predicted: str
    x: float
    y: float


def write_map(folder: Path, rows: Sequence[MapRow], thumbnails: bytes) -> None:
    """`thumbnails` is the sheet of the first photos (see `photo_map.thumbnails`)."""
    lines = [(*astuple(row)[:4], f"{row.x:.4f}", f"{row.y:.4f}") for row in rows]
    write_csv(folder / MAP_FILE, _COLUMNS, lines)
    replace_file(folder / THUMBNAILS_FILE, thumbnails)


def read_map(folder: Path) -> tuple[list[MapRow], bytes]:
    """No rows for a model of an earlier version. Raises StoreError if a file is damaged."""
    path = folder / MAP_FILE
    try:
        rows = [_row(row) for row in read_csv(path)]
    except FileNotFoundError:
        return [], b""
    except (OSError, KeyError, ValueError) as error:
        raise StoreError(f'"{path}" cannot be read ({error}): delete it, or train again.') from None
    return rows, _read_thumbnails(folder / THUMBNAILS_FILE)


def _row(row: dict[str, str]) -> MapRow:
    x, y = (float(row[name]) for name in ("x", "y"))
    if not (0 <= x <= 1 and 0 <= y <= 1):
        raise ValueError(f"a position is {row['x']}, {row['y']}")
    name, label, split, predicted = (row[name] for name in _COLUMNS[:4])
    return MapRow(name=name, label=label, split=split, predicted=predicted, x=x, y=y)


def _read_thumbnails(path: Path) -> bytes:
    """Without them, the map has none."""
    try:
        with open_regular(path) as file:
            return file.read(_MAX_BYTES)
    except OSError:
        return b""
