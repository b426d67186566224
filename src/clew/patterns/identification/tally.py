"""A few numbers per photo, so that many thousands can be counted and sorted without being held in
memory: its group, the model's confidence, where its line is."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from clew.patterns.identification.results import Identified

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
        groups = np.asarray(self._groups)
        faulty, unknown = int((groups == _FAULTY).sum()), int((groups == _UNKNOWN).sum())
        doubtful = int((groups == _DOUBTFUL).sum()) + unknown
        return {
            "photos": len(groups),
            "identified": len(groups) - faulty - doubtful,
            "doubtful": doubtful,
            "unknown": unknown,
            "faulty": faulty,
        }

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
