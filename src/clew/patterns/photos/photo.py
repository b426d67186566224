"""What is known about a photo from its path alone, and why an unusable one is excluded."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clew.loading.splits import SPLIT_NAMES

SPLITS = SPLIT_NAMES  # "train", "validation", "test"
# In lower case; the actual format is detected from the first bytes.
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
)
# Of copies in several split folders, the one for evaluation is kept, so that no photo is both
# trained and evaluated on and the metrics stay comparable.
_FIRST_KEPT = ("test", "validation", "train", None)
_MOST_NAMES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Photo:
    """One file that should be a photo; nothing was opened yet."""

    path: Path  # absolute
    name: str  # inside the folder, with "/": how users see it, and how it is found again
    label: str | None  # its class: the class folder's name (NFC)
    split: str | None  # if the folders say so


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A file or folder that is excluded, and why."""

    name: str
    label: str | None
    kind: str  # one or two words to count by, such as "truncated"
    reason: str  # for a person, without the name


def natural_order(text: str) -> tuple[list[tuple[int, int, str]], str]:
    """A key to sort by: "2" before "10", "b" between "A" and "C"."""
    key = [
        (0, int(part), "") if part[0] in "0123456789" else (1, 0, part.casefold())
        for part in re.findall(r"[0-9]+|[^0-9]+", text)
    ]
    return key, text


def class_name(folder_name: str) -> str:
    """The class of a folder: accents can be encoded in two ways, which mean the same."""
    return unicodedata.normalize("NFC", folder_name)


def refuse_equals(group: Sequence[Photo]) -> dict[str, Fault]:
    """Why duplicate photos are excluded, by name.

    Of identical images in one class one is used. An image in two classes is used in neither: one of
    them must be wrong, and nobody here knows which.
    """
    if len({photo.label for photo in group}) > 1:
        reason = f"the same image is in several classes: {_name_classes(group)}"
        return {photo.name: _fault(photo, "contradiction", reason) for photo in group}
    kept, *others = sorted(group, key=first_kept)
    reason = f'the same image as "{kept.name}", which is used instead'
    return {photo.name: _fault(photo, "duplicate", reason) for photo in others}


def first_kept(photo: Photo) -> tuple[int, str]:
    """A key to sort copies of one image by: the first is used."""
    return _FIRST_KEPT.index(photo.split), photo.name


def _name_classes(group: Sequence[Photo]) -> str:
    """Name one copy from each class, for the message."""
    by_class: dict[str | None, Photo] = {}
    for photo in sorted(group, key=lambda photo: photo.name):
        by_class.setdefault(photo.label, photo)
    names = [f'"{photo.name}"' for photo in list(by_class.values())[:_MOST_NAMES]]
    more = f" and {len(group) - len(names):,} more" if len(group) > len(names) else ""
    return ", ".join(names) + more + "; keep it only in the correct one"


def _fault(photo: Photo, kind: str, reason: str) -> Fault:
    return Fault(name=photo.name, label=photo.label, kind=kind, reason=reason)
