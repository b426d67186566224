"""What is known about a photo from its path alone, why an unusable one is excluded, and its split:
the folders decide, or a hash of its content, so that it keeps its split when others are added."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clew.base.errors import InputError
from clew.base.texts import list_some
from clew.loading.splits import SPLIT_NAMES, Shares

SPLITS = SPLIT_NAMES  # "train", "validation", "test"
# In lower case; the actual format is detected from the first bytes.
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
)
# Of copies in several split folders, the one for evaluation is kept, so that no photo is both
# trained and evaluated on and the metrics stay comparable.
_FIRST_KEPT = ("test", "validation", "train", None)
_MOST_NAMES = 3
USUAL_SHARES = Shares(train=0.7, validation=0.1, test=0.2)
_NAMED = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A file or folder that is excluded, and why."""

    name: str
    label: str | None
    kind: str  # one or two words to count by, such as "truncated"
    reason: str  # for a person, without the name


@dataclass(frozen=True, kw_only=True, slots=True)
class Photo:
    """One file that should be a photo; nothing was opened yet."""

    path: Path  # absolute
    name: str  # inside the folder, with "/": how users see it, and how it is found again
    label: str | None  # its class: the class folder's name (NFC)
    split: str | None  # if the folders say so

    def fault(self, kind: str, reason: str) -> Fault:
        """Why it is excluded."""
        return Fault(name=self.name, label=self.label, kind=kind, reason=reason)


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
        return {photo.name: photo.fault("contradiction", reason) for photo in group}
    kept, *others = sorted(group, key=first_kept)
    reason = f'the same image as "{kept.name}", which is used instead'
    return {photo.name: photo.fault("duplicate", reason) for photo in others}


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


def assign_splits(
    photos: Sequence[Photo],
    keys: Sequence[str],
    *,
    shares: Shares = USUAL_SHARES,
    known: Mapping[str, str] | None = None,
) -> list[str]:
    """The split of every photo: "train", "validation" or "test".

    `keys` are digests of the photos' content; `known` maps digests to the split of an earlier run.
    Splits given by folders take precedence; a split without a folder is drawn from the training
    photos. Raises InputError for fewer than two classes, for classes with too few photos, and if
    the splits of the earlier run leave nothing to train or evaluate on.
    """
    labels = [photo.label or "" for photo in photos]
    _refuse_one_class(set(labels))
    folders = {photo.split for photo in photos if photo.split is not None}
    shares = _open_shares(shares, folders)
    open_rows: dict[str, list[int]] = {label: [] for label in labels}
    for row, photo in enumerate(photos):
        if photo.split in (None, "train"):
            open_rows[labels[row]].append(row)
    _refuse_thin({label: {keys[row] for row in open_rows[label]} for label in open_rows}, shares)
    splits = [photo.split or "" for photo in photos]
    for rows in open_rows.values():
        dealt = _deal({keys[row] for row in rows}, shares, known or {})
        for row in rows:
            splits[row] = dealt[keys[row]]
    _refuse_nothing_left(labels, splits, shares)
    return splits


def group_copies(
    photos: Sequence[Photo],
    keys: Sequence[str],
    pairs: Iterable[tuple[int, int]],
    known: Mapping[str, str] | None = None,
) -> list[str]:
    """One key for all near duplicates of a class, so that `assign_splits` puts them into the same
    split; `pairs` are indices of two photos each. A photo in `known` keeps its own key, and its
    copies get it. The photos of a class that is mostly copies keep theirs: there would be too few
    groups to split."""
    known, groups = known or {}, {row: {row} for row in range(len(photos))}
    for one, other in pairs:
        if photos[one].label == photos[other].label and groups[one] is not groups[other]:
            groups[one] |= groups[other]
            groups |= dict.fromkeys(groups[other], groups[one])
    distinct = {id(group): photos[min(group)].label for group in groups.values()}
    left, labels = Counter(distinct.values()), Counter(photo.label for photo in photos)
    grouped = list(keys)
    for row, group in groups.items():
        if keys[row] not in known and 2 * left[photos[row].label] > labels[photos[row].label]:
            grouped[row] = min((keys[one] not in known, keys[one]) for one in group)[1]
    return grouped


def _refuse_one_class(classes: set[str]) -> None:
    if len(classes) < 2:
        what = f'only one class ("{min(classes)}")' if classes else "no usable photo"
        raise InputError(
            f"there is {what}, but a classifier requires at least two classes: add a folder with "
            "photos of another class."
        )


def _open_shares(shares: Shares, folders: set[str]) -> Shares:
    """The fractions of what the folders leave open: a split with a folder takes nothing more."""
    if folders and "train" not in folders:
        raise InputError(
            f"there are folders for {' and '.join(sorted(folders))} but none for training: put "
            'training photos into a folder "train", with one folder per class inside.'
        )
    parts = {
        split: 0.0 if split in folders - {"train"} else share
        for split, share in zip(SPLIT_NAMES, shares, strict=True)
    }
    if not parts["train"]:
        raise InputError(
            f"the split {shares} leaves no photos for training: its first number must be greater "
            "than 0."
        )
    total = sum(parts.values())
    return Shares(**{split: part / total for split, part in parts.items()})


def _refuse_thin(keys: Mapping[str, set[str]], shares: Shares) -> None:
    """Raise InputError for classes with too few photos: every split that is drawn needs at least
    one photo of every class."""
    dealt = [split for split, share in zip(SPLIT_NAMES, shares, strict=True) if share]
    thin = [label for label in sorted(keys, key=natural_order) if len(keys[label]) < len(dealt)]
    if not thin:
        return
    shown = list_some([f'"{label}" ({len(keys[label])})' for label in thin], _NAMED)
    raise InputError(
        f"classes with too few distinct photos: {shown}. Each class requires at least "
        f"{len(dealt)}, one for {' and one for '.join(dealt)}: add photos, or remove the "
        "folder."
    )


def _refuse_nothing_left(labels: Sequence[str], splits: Sequence[str], shares: Shares) -> None:
    """Raise InputError if photos that keep their split of an earlier run leave a split without
    photos."""
    trained = {label for label, split in zip(labels, splits, strict=True) if split == "train"}
    untrained = [f'"{label}"' for label in sorted({*labels} - trained, key=natural_order)]
    lacking = [split for split, share in zip(SPLIT_NAMES, shares, strict=True) if share]
    lacking = [split for split in lacking if split not in splits]
    if not untrained and not lacking:
        return
    what = f"training of {list_some(untrained, _NAMED)}" if untrained else " and ".join(lacking)
    raise InputError(
        "photos keep the split from the run that this one starts from, which leaves none for "
        f"{what}: add photos, or start from scratch (without `start_from`; for a set, with "
        "`overwrite=True`)."
    )


def _deal(keys: set[str], shares: Shares, known: Mapping[str, str]) -> dict[str, str]:
    """The split of each key of one class."""
    open_splits = {split for split, share in zip(SPLIT_NAMES, shares, strict=True) if share}
    dealt = {key: known[key] for key in keys if known.get(key) in open_splits}
    fresh = sorted(keys - dealt.keys(), key=_hash)
    counts = Counter(dealt.values())
    slots = [
        split
        for split, wanted in _targets(len(keys), shares).items()
        for _ in range(wanted - counts[split])
    ]
    if len(slots) > len(fresh):  # then splits that have nothing yet come first, training above all
        first = ("train", *dict.fromkeys(slots))
        slots = [split for split in dict.fromkeys(first) if not counts[split]] + slots
    slots += ["train"] * (len(fresh) - len(slots))
    return dealt | dict(zip(fresh, slots, strict=False))


def _targets(count: int, shares: Shares) -> dict[str, int]:
    """How many of a class's photos each split should have, test first; at least one each."""
    test, validation = (
        max(1, round(share * count)) if share else 0 for share in (shares.test, shares.validation)
    )
    while test + validation > count - (shares.train > 0):
        test, validation = (test - 1, validation) if test >= validation else (test, validation - 1)
    return {"test": test, "validation": validation, "train": count - test - validation}


def _hash(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
