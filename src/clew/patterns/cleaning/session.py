"""A running cleaning session: findings that wait for a decision, each decision carried out at once,
and undone again."""

import os
import threading
from collections import Counter
from pathlib import Path

from clew.base.errors import Call, InputError
from clew.patterns.cleaning.changes import Action, Changes, PhotoChange
from clew.patterns.cleaning.findings import KINDS, Finding, Findings, Kind
from clew.patterns.library.names import check_class_name
from clew.patterns.library.placing import class_folder
from clew.patterns.photos.find import SPLIT_FOLDERS
from clew.patterns.photos.photo import natural_order
from clew.patterns.review.questions import find_label

# The counts of a session, by what was done.
DONE: dict[Action, str] = {
    "relabel": "relabeled",
    "move": "moved",
    "remove": "removed",
    "keep": "kept",
}


class Cleaning:
    """The open findings, by number. Threads that share it hold `lock`.

    A finding is settled by a decision about it, and when one of its photos is moved away.
    `next_call` is what to do afterwards, `again_call` asks what is left.
    """

    def __init__(
        self,
        findings: Findings,
        changes: Changes,
        *,
        next_call: Call,
        again_call: Call,
    ) -> None:
        self.data, self.changes = findings.data, changes
        self.classes = list(findings.classes)
        self.next_call, self.again_call = next_call, again_call
        self.lock = threading.RLock()
        self._decided = {change.key for change in changes}
        self.findings = tuple(one for one in findings if self._is_asked(one))
        self.splits = _find_splits(self.data) if findings.split_folders else {}
        self._moved: dict[str, Path] = {}  # where photos went in this session, by their names
        self._made: list[PhotoChange] = []
        self._later: list[int] = []

    @property
    def place(self) -> int:
        """The number of decisions in this session."""
        return len(self._made)

    @property
    def can_undo(self) -> bool:
        return len(self.changes) > 0

    @property
    def removed(self) -> Path:
        return self.changes.removed

    def counts(self) -> dict[str, int]:
        """How many photos this session relabeled, moved, removed and kept."""
        found = Counter(change.action for change in self._made)
        return {name: found[action] for action, name in DONE.items()}

    def waiting(self, kind: Kind) -> list[int]:
        """The numbers of the open findings of a kind; those put off come last."""
        found = [
            number
            for number, finding in enumerate(self.findings)
            if finding.kind == kind and self.is_open(number)
        ]
        return sorted(found, key=lambda number: self._put_off(number))

    def count_open(self) -> dict[Kind, int]:
        return {kind: len(self.waiting(kind)) for kind in KINDS}

    def is_open(self, number: int) -> bool:
        """Whether a finding waits for a decision."""
        if not 0 <= number < len(self.findings):
            return False
        finding = self.findings[number]
        is_moved = any(name in self._moved for name in (finding.name, finding.other))
        return finding.key not in self._decided and not is_moved

    def path(self, number: int, *, other: bool = False) -> Path | None:
        """The file of a finding's photo, or of the photo that it resembles."""
        if not 0 <= number < len(self.findings):
            return None
        name = self.findings[number].other if other else self.findings[number].name
        # A page may still be loading a photo that has just been moved.
        return None if name is None else self._moved.get(name, self.data / name)

    def keep(self, number: int) -> str:
        """Nothing is wrong: the finding is not shown again."""
        finding = self.findings[number]
        self._take(self.changes.keep(finding.name, finding.key))
        return f"kept: {finding.name}"

    def remove(self, number: int, *, other: bool = False) -> str:
        """Move a photo into the folder of removed ones."""
        finding = self.findings[number]
        name = self._name(finding, other=other)
        self._take(self.changes.remove(name, finding.key))
        return f"removed: {name} (undo brings it back)"

    def relabel(self, number: int, label: str, *, other: bool = False) -> str:
        """Move a photo into the folder of another class, possibly a new one. Raises InputError for
        an invalid name."""
        finding = self.findings[number]
        label = find_label(self.classes, label) or check_class_name(label)
        name = self._name(finding, other=other)
        if label == (finding.other_label if other else finding.label):
            raise InputError(f'the photo is already in the class "{label}": keep it.')
        folder = class_folder(self._split_folder(name), label)
        target = folder.relative_to(self.data).as_posix()
        self._take(self.changes.put_into(name, target, finding.key))
        if label not in self.classes:
            self.classes = sorted([*self.classes, label], key=natural_order)
        return f"{label}: {name} was moved there"

    def move(self, number: int, split: str, *, other: bool = False) -> str:
        """Move a photo into the folder of another split. Raises InputError if there is none."""
        finding = self.findings[number]
        if split not in self.splits:
            raise InputError(f'there is no folder for "{split}".')
        name = self._name(finding, other=other)
        inside = Path(name).parts[1:-1]
        target = Path(self.splits[split], *inside).as_posix()
        self._take(self.changes.put_into(name, target, finding.key, action="move"))
        return f"{split}: {name} was moved there"

    def put_off(self, number: int) -> str:
        """Ask about the finding after all others of its kind."""
        if number in self._later:
            self._later.remove(number)
        self._later.append(number)
        return f"later: {self.findings[number].name}"

    def undo(self) -> PhotoChange:
        """Undo the latest change, of this session or an earlier one. Raises InputError if there is
        none, or the photo cannot be put back."""
        undone = self.changes.undo()
        if undone is None:
            raise InputError("there is nothing to undo: nothing was changed.")
        self._decided.discard(undone.key)
        if undone.action != "keep":
            self._moved.pop(undone.source, None)
        self._made = [change for change in self._made if change.number != undone.number]
        return undone

    def split_of(self, name: str) -> str | None:
        """The split folder that a photo is in."""
        return SPLIT_FOLDERS.get(Path(name).parts[0].casefold()) if self.splits else None

    def _take(self, change: PhotoChange) -> None:
        self._made.append(change)
        self._decided.add(change.key)
        moved = self.changes.place_of(change)
        if moved is not None:
            self._moved[change.source] = moved

    def _is_asked(self, finding: Finding) -> bool:
        """Whether nobody has decided yet, and the photos are still there."""
        names = (finding.name, finding.other)
        there = all(os.path.lexists(self.data / name) for name in names if name is not None)
        return there and finding.key not in self._decided

    def _put_off(self, number: int) -> int:
        return self._later.index(number) if number in self._later else -1

    def _name(self, finding: Finding, *, other: bool) -> str:
        name = finding.other if other else finding.name
        if name is None:
            raise InputError("this finding is about one photo only.")
        return name

    def _split_folder(self, name: str) -> Path:
        """The folder whose folders are classes, for a photo."""
        return self.data / Path(name).parts[0] if self.splits else self.data


def _find_splits(data: Path) -> dict[str, str]:
    """The split folders of the data, by split."""
    names = [entry.name for entry in sorted(data.iterdir()) if entry.is_dir()]
    splits = ((SPLIT_FOLDERS.get(name.casefold()), name) for name in names)
    return {split: name for split, name in splits if split is not None}
