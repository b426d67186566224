"""What is known of a photo from its place alone, and what is said of one that cannot be used."""

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from clew.loading.splits import SPLIT_NAMES

SPLITS = SPLIT_NAMES  # "train", "validation", "test"
# In lower case; what a file really is, is told from its first bytes.
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Photo:
    """One file that should be a photo; nothing was opened yet."""

    path: Path  # absolute
    name: str  # inside the folder, with "/": how users see it, and how it is found again
    label: str | None  # its class: the class folder's name (NFC)
    split: str | None  # where the folders say so


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A file or folder that is left out, and why."""

    name: str
    label: str | None
    kind: str  # one or two words to count by, such as "cut"
    reason: str  # for a person, without the name


def natural_order(text: str) -> tuple[list[tuple[int, int, str]], str]:
    """A key to sort by: "2" before "10", "b" between "A" and "C"."""
    key = [
        (0, int(part), "") if part[0] in "0123456789" else (1, 0, part.casefold())
        for part in re.findall(r"[0-9]+|[^0-9]+", text)
    ]
    return key, text


def class_name(folder_name: str) -> str:
    """The class that a folder stands for: accents are written in two ways, and mean the same."""
    return unicodedata.normalize("NFC", folder_name)
