"""Of equal pictures in one class only one is used. A picture that lies in two classes is used in
none: one of them must be wrong, and nobody here knows which."""

from collections.abc import Sequence

from clew.patterns.photos.photo import Fault, Photo

# Of copies in several split folders, the one that is measured on stays: what is learnt from is
# not what is measured on, and the figure can be compared with others'.
_FIRST_KEPT = ("test", "validation", "train", None)
_MOST_NAMES = 3


def refuse_equals(group: Sequence[Photo]) -> dict[str, Fault]:
    """Why photos of the same picture are left out, by their names: all of them, or all but one."""
    if len({photo.label for photo in group}) > 1:
        reason = f"the same picture is in several classes: {_name_classes(group)}"
        return {photo.name: _fault(photo, "contradiction", reason) for photo in group}
    kept, *others = sorted(group, key=_first_kept)
    reason = f'the same picture as "{kept.name}", which is used'
    return {photo.name: _fault(photo, "duplicate", reason) for photo in others}


def _first_kept(photo: Photo) -> tuple[int, str]:
    return _FIRST_KEPT.index(photo.split), photo.name


def _name_classes(group: Sequence[Photo]) -> str:
    """Of many copies, one from each class."""
    by_class: dict[str | None, Photo] = {}
    for photo in sorted(group, key=lambda photo: photo.name):
        by_class.setdefault(photo.label, photo)
    names = [f'"{photo.name}"' for photo in list(by_class.values())[:_MOST_NAMES]]
    more = f" and {len(group) - len(names):,} more" if len(group) > len(names) else ""
    return ", ".join(names) + more + "; keep it in the one where it belongs"


def _fault(photo: Photo, kind: str, reason: str) -> Fault:
    return Fault(name=photo.name, label=photo.label, kind=kind, reason=reason)
