"""import.csv: what became of every file that was ever to be imported, for people."""

import csv
import io
from pathlib import Path

from clew.patterns.library.journal import Journal, Source
from clew.patterns.photos.photo import natural_order
from clew.storage.writing import replace_file

LISTING = "import.csv"
_COLUMNS = ("file", "class", "result", "kind", "reason", "photo")
_ORDER = ("left out", "added", "already there")


def write_listing(folder: Path, journal: Journal) -> Path:
    """What was left out comes first."""
    decided = [source for source in journal.sources.values() if source.result]
    decided.sort(key=lambda one: (_ORDER.index(one.result), natural_order(one.source)))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    writer.writerows(map(_row, decided))
    path = folder / LISTING
    # A name that is no text comes out as the bytes it has on the disk.
    replace_file(path, text.getvalue().encode("utf-8", "surrogateescape"))
    return path


def _row(source: Source) -> tuple[str, ...]:
    one = source
    return (one.source, one.label, one.result, one.kind, one.reason, one.photo)
