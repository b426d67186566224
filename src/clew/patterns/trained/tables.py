"""The tables beside a model: which photo is in which split, what was excluded, what was predicted,
and where each photo lies on the map."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from clew.base.errors import StoreError
from clew.patterns.photos.photo import Fault
from clew.storage.reading import open_regular
from clew.storage.text_files import read_csv, write_csv
from clew.storage.writing import replace_file

SPLITS_FILE, EXCLUDED_FILE = "splits.csv", "excluded.csv"
OLD_EXCLUDED_FILE = "left_out.csv"  # of runs of earlier versions
PREDICTIONS_FILE = "predictions.csv"
# Splits of photos that only earlier runs had: the starting weights were still trained on them.
EARLIER_FILE = "earlier_splits.csv"
MAP_FILE, THUMBNAILS_FILE = "map.csv", "map.jpg"
_COLUMNS = ("name", "class", "split", "predicted", "x", "y")
_MAX_BYTES = 1 << 26


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitRow:
    """A photo that is used, by its name in the folder; `digest` is that of its image."""

    name: str
    label: str
    split: str
    digest: str


def write_splits(folder: Path, rows: Iterable[SplitRow]) -> None:
    lines = ((row.name, row.label, row.split, row.digest) for row in rows)
    write_csv(folder / SPLITS_FILE, ("name", "class", "split", "digest"), lines)


def read_splits(folder: Path) -> list[SplitRow]:
    """Read splits.csv. Raises StoreError if it is missing or damaged: it must be known which photos
    a model was trained on."""
    rows = _read(folder / SPLITS_FILE, ("name", "class", "split", "digest"))
    return [SplitRow(name=name, label=label, split=at, digest=key) for name, label, at, key in rows]


def write_earlier_splits(folder: Path, splits: Mapping[str, str]) -> None:
    """Write earlier_splits.csv, the splits by digest; no file if there are none."""
    if splits:
        write_csv(folder / EARLIER_FILE, ("digest", "split"), splits.items())
    else:
        (folder / EARLIER_FILE).unlink(missing_ok=True)


def read_known_splits(folder: Path) -> dict[str, str]:
    """The split of every photo that the model, or one whose weights it started from, was trained
    with, by digest. Raises StoreError like `read_splits`."""
    known = {row.digest: row.split for row in read_splits(folder)}
    if (folder / EARLIER_FILE).exists():
        known |= {key: split for key, split in _read(folder / EARLIER_FILE, ("digest", "split"))}
    return known


def describe_changes(before: Sequence[SplitRow], now: Sequence[SplitRow]) -> str:
    """How many photos were added, were removed, or have another class or split; "" if none.

    A photo is identified by its image, not by its name.
    """
    old, new = ({row.digest: row for row in rows} for rows in (before, now))
    both = old.keys() & new.keys()
    counts = {
        "new": len(new.keys() - old.keys()),
        "gone": len(old.keys() - new.keys()),
        "in another class": sum(old[key].label != new[key].label for key in both),
        "in another split": sum(
            old[key].split != new[key].split and old[key].label == new[key].label for key in both
        ),
    }
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def write_excluded(folder: Path, faults: Iterable[Fault]) -> None:
    lines = ((fault.name, fault.label or "", fault.kind, fault.reason) for fault in faults)
    write_csv(folder / EXCLUDED_FILE, ("name", "class", "kind", "reason"), lines)
    (folder / OLD_EXCLUDED_FILE).unlink(missing_ok=True)


def write_predictions(
    folder: Path,
    photos: Iterable[tuple[str, str]],
    classes: Sequence[str],
    probabilities: Float[np.ndarray, "photos classes"],
) -> None:
    """Write predictions.csv, with the two most likely classes of each photo. `photos` are (name,
    class)."""
    header = ("name", "class", "predicted", "probability", "second", "second_probability")
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :2]
    lines = []
    for (name, label), places, row in zip(photos, order, probabilities, strict=True):
        top_two = [text for place in places for text in (classes[place], f"{row[place]:.6f}")]
        lines.append((name, label, *top_two))
    write_csv(folder / PREDICTIONS_FILE, header, lines)


def _read(path: Path, columns: Sequence[str]) -> list[list[str]]:
    try:
        return [[row[column] for column in columns] for row in read_csv(path)]
    except (OSError, KeyError, ValueError) as error:
        raise StoreError(
            f'"{path}" cannot be read ({error}), but it lists the photos that the model was '
            "trained on: restore it, or train again."
        ) from None


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
