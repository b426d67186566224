"""Every decision about a photo: written down before it is carried out, so that the next session
completes what a kill interrupted, and any decision can be undone. For reviews and for cleaning."""

import errno
import hashlib
import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from clew.base.errors import ClewError, InputError, StoreError
from clew.base.typed_json import Bounds, Count, read_as, wrong
from clew.patterns.library.placing import (
    candidate_names,
    check_class_name,
    check_photo_name,
    copy_beside,
    lies_inside,
    put_photo,
    remove_parts,
    safe_file_name,
)
from clew.patterns.photos.find import walk
from clew.patterns.photos.photo import SUFFIXES, class_name, natural_order
from clew.storage.reading import open_regular, parse_json, read_json
from clew.storage.writing import append_to_file, disk_errors, replace_file, sync_folder

logger = logging.getLogger(__name__)

REMOVED = "removed"
_CHUNK = 1 << 20
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK)
# How earlier versions named fields and steps in a review.json.
_OLD_FIELDS = {"path": "source", "placed": "target", "decided": "made"}
_OLD_STEPS = {"place": "start", "take away": "start", "take back": "undo", "done": "done"}

# The first three are those of a review, the others those of a cleaning session.
Action = Literal["approved", "corrected", "skipped", "relabel", "move", "remove", "keep"]
# What is being done, or was: carried out, undone.
Step = Literal["start", "done", "undo", "undone"]
Text = Annotated[str, Bounds(most=4_096)]
# Called with a decision whose step is "start", or "undo" if the photo went back.
Moved = Callable[["Decision"], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A person's decision about one photo, and its result.

    `source` is where the photo was: an absolute path, or one below the folder of photos. `target`
    is the photo in its new place, below that folder or below the folder of removed ones; `is_new`
    says that it was not there before, `moves` that the original is deleted. `digest` (of the file's
    bytes), `bytes` and `modified_ns` identify a reviewed photo; `key` is the finding that a
    cleaning session asked about; `link` is where a symbolic link pointed.
    """

    number: Count = 0
    action: Action
    step: Step = "start"
    source: Text
    target: Text | None = None
    moves: bool = False
    is_new: bool = False
    bytes: Count = 0
    modified_ns: int = 0
    digest: Text = ""
    made: Text = ""
    name: Text = ""
    label: Text | None = None
    guess: Text | None = None
    probability: float | None = None
    key: tuple[Text, ...] = ()
    link: Text | None = None


class DecisionJournal:
    """The decisions in a file, one line per step. Every change is on disk when the method returns;
    if it cannot be written, it does not take effect. With `inside`, only photos of one folder are
    decided about. Raises StoreError for a damaged file."""

    def __init__(self, path: Path, *, inside: bool = False) -> None:
        self.path = path
        old = path.with_suffix(".json")
        if not path.exists() and old.exists():
            replace_file(path, b"".join(map(_line, _read_old(old))))
            old.unlink()
        self._by_number, whole_bytes = read_journal(path, inside=inside)
        if path.exists() and path.stat().st_size > whole_bytes:
            # A line that a kill cut off, before its step was taken.
            with open_regular(path) as file:
                whole = file.read(whole_bytes)
            replace_file(path, whole)

    def __iter__(self) -> Iterator[Decision]:
        """Those that were not undone, in order."""
        return (one for one in self._by_number.values() if one.step != "undone")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def interrupted(self) -> list[Decision]:
        return [one for one in self if one.step != "done"]

    def note(self, decision: Decision, **changes: Any) -> Decision:
        """Write the decision as it is now; a new one gets its number and time."""
        decision = replace(decision, **changes)
        if not decision.number:
            number = max(self._by_number, default=0) + 1
            made = datetime.now(UTC).isoformat(timespec="seconds")
            decision = replace(decision, number=number, made=made)
        with disk_errors(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with append_to_file(self.path) as file:
                file.write(_line(decision))
                file.flush()
                os.fsync(file.fileno())
        self._by_number[decision.number] = decision
        return decision


def _line(decision: Decision) -> bytes:
    return json.dumps(asdict(decision)).encode() + b"\n"


def read_journal(path: Path, *, inside: bool) -> tuple[dict[int, Decision], int]:
    """The decisions by number, and the length of the lines that are complete."""
    decisions: dict[int, Decision] = {}
    try:
        with open_regular(path) as file:
            content = file.read()
    except FileNotFoundError:
        return decisions, 0
    except OSError as error:
        raise _damaged(f'"{path}"', error) from None
    whole = content[: content.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            decision = _read_decision(parse_json(line, encodable=False), inside=inside)
        except ValueError as error:
            raise _damaged(f'line {number:,} of "{path}"', error) from None
        decisions[decision.number] = decision
    return decisions, len(whole)


def _read_decision(content: Any, *, inside: bool) -> Decision:
    """Raises ValueError for a decision that nobody has made: completing or undoing it would write
    or delete whatever file it names."""
    entry = read_as(dict[str, Any], content)
    if "moves" not in entry:  # a cleaning session of an earlier version, which always moved
        entry |= dict.fromkeys(("moves", "is_new"), entry.get("target") is not None)
    decision: Decision = read_as(Decision, entry)
    names = [name for name in (decision.source, decision.target) if name is not None]
    for name in names if inside else names[1:]:
        if not lies_inside(name):
            raise wrong("name", name)
    is_carried_out = inside or len(names) > 1 or decision.step != "done"
    for name in names if is_carried_out else ():
        if Path(name).suffix.lower() not in SUFFIXES:
            raise wrong("name", name)
    return decision


def _read_old(path: Path) -> Iterator[Decision]:
    """A review.json, as earlier versions wrote it."""
    try:
        raw = read_as(dict[str, Any], read_json(path, encodable=False))
        if (raw.get("format"), raw.get("version")) != ("clew-review", 1):
            raise ValueError("it is of another format or version")
        for number, entry in enumerate(read_as(list[dict[str, Any]], raw.get("decisions")), 1):
            renamed = {_OLD_FIELDS.get(name, name): value for name, value in entry.items()}
            step = renamed.get("step", "done")
            known = {"number": number, "step": _OLD_STEPS.get(str(step), step)}
            yield _read_decision({"moves": False} | renamed | known, inside=False)
    except (OSError, ValueError) as error:
        raise _damaged(f'"{path}"', error) from None


def _damaged(where: str, error: Exception) -> StoreError:
    return StoreError(
        f"{where}, the journal of decisions, cannot be read ({error}): restore the file from a "
        "backup, or rename it to start over."
    )


class Decisions:
    """Carries decisions out and undoes them. `root` is the folder of photos; reviewed photos go
    into its `classes`, removed ones into the folder `removed`. `moved` is told each photo that is
    at another path now, if necessary by the session after a kill.

    Every step can be repeated: what is already done is detected and left alone.
    """

    def __init__(
        self,
        journal: DecisionJournal,
        root: Path,
        *,
        classes: "LabeledFolder | None" = None,
        moved: Moved = lambda _: None,
    ) -> None:
        self.journal, self.root, self.classes, self._moved = journal, root, classes, moved
        self.removed = journal.path.parent / REMOVED
        self._made: set[Path] = set()
        for decision in journal.interrupted():
            try:
                self._complete(decision)
            except (ClewError, OSError) as error:
                logger.warning(
                    "%s: an interrupted decision cannot be completed: %s", decision.source, error
                )

    def source_of(self, decision: Decision) -> Path:
        return self.root / decision.source  # an absolute path stays as it is

    def target_of(self, decision: Decision) -> Path:
        """Where the photo went, or its original place if it stayed."""
        root = self.removed if decision.action == "remove" else self.root
        return self.source_of(decision) if decision.target is None else root / decision.target

    def note(self, decision: Decision) -> Decision:
        """Write down a decision that changes no photo."""
        return self.journal.note(decision, step="done")

    def carry_out(self, decision: Decision) -> Decision:
        """Put the photo into its place, and delete the original if it moves. Raises InputError,
        DiskFullError or OSError; then nothing was done."""
        if decision.target is not None:
            if self.target_of(decision).parent == self.source_of(decision).parent:
                raise InputError(f'the photo "{self.source_of(decision)}" is already there.')
            decision = self._with_free_target(decision)
        return self._carry_out(self.journal.note(decision))

    def undo(self, decision: Decision) -> Decision:
        """Raises InputError, and keeps the decision, if another file is in the way."""
        if decision.moves or decision.is_new:
            decision = self.journal.note(decision, step="undo")
            try:
                self._take_back(decision)
            except (ClewError, OSError):
                self.journal.note(decision, step="done")
                raise
        return self.journal.note(decision, step="undone")

    def _carry_out(self, decision: Decision) -> Decision:
        try:
            decision = self._put(decision)
        except (ClewError, OSError):
            self.journal.note(decision, step="undone")
            raise
        moves = decision.moves and self._take_away(decision)
        self._moved(decision)
        return self.journal.note(decision, step="done", moves=moves)

    def _complete(self, decision: Decision) -> None:
        source = self.source_of(decision)
        if decision.step == "undo":
            self.undo(decision)
        elif os.path.lexists(source) and _is_same(source, decision.digest or digest_file(source)):
            self._carry_out(decision)
        elif decision.target is None or not os.path.lexists(self.target_of(decision)):
            self.journal.note(decision, step="undone")
        else:
            self._moved(decision)
            self.journal.note(decision, step="done")

    def _put(self, decision: Decision) -> Decision:
        """The photo is at its target afterwards, too."""
        source = self.source_of(decision)
        if self.classes is not None and decision.label is not None:
            name, is_new = self.classes.add(source, decision.label)
            decision = replace(decision, target=name, is_new=is_new)
            try:
                return self.journal.note(decision)
            except (ClewError, OSError):
                if is_new:
                    self._delete_target(decision)
                raise
        if os.path.lexists(self.target_of(decision)):  # by a session that was killed
            if _is_same(source, digest_file(self.target_of(decision))):
                return decision
            decision = self.journal.note(self._with_free_target(decision))
        target = self.target_of(decision)
        self._made |= set() if target.parent.exists() else {target.parent}
        with disk_errors(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
        link = (
            os.path.normpath(source.parent / os.readlink(source)) if source.is_symlink() else None
        )
        _put_link(source, target, link)
        return decision

    def _with_free_target(self, decision: Decision) -> Decision:
        wanted = self.target_of(decision)
        names = candidate_names(wanted.parent, safe_file_name(wanted.name))
        free = next(one for one in names if not os.path.lexists(one))
        target = PurePosixPath(str(decision.target)).with_name(free.name)
        return replace(decision, target=str(target))

    def _take_away(self, decision: Decision) -> bool:
        """Delete the original, once its new place certainly has it. False: it stays, because it is
        the one there itself, was changed, or cannot be deleted."""
        source, target = self.source_of(decision), self.target_of(decision)
        try:
            if _are_one_entry(source, target) or (not decision.is_new and target.samefile(source)):
                return False
            if decision.digest and {digest_file(source), digest_file(target)} != {decision.digest}:
                return False
            source.unlink()
            sync_folder(source.parent)
        except OSError:
            return False
        return True

    def _take_back(self, decision: Decision) -> None:
        """Restore the original, even if it was deleted in the meantime, and only then delete what
        was put elsewhere."""
        source, target = self.source_of(decision), self.target_of(decision)
        if not os.path.lexists(source):
            self._restore(decision)
        elif not decision.digest and not os.path.lexists(target):
            pass  # a session that was killed had restored it
        elif not _is_same(source, decision.digest or digest_file(target)):
            raise InputError(
                f'"{source}" is now a different file: the photo cannot be restored there. It stays '
                f'in "{target}"; move it yourself.'
            )
        if decision.is_new and os.path.lexists(target) and not _are_one_entry(source, target):
            self._delete_target(decision)
        self._moved(decision)

    def _restore(self, decision: Decision) -> None:
        source, target = self.source_of(decision), self.target_of(decision)
        self._check_target(decision)
        with disk_errors(source.parent):
            source.parent.mkdir(parents=True, exist_ok=True)
        if decision.is_new:
            _put_link(target, source, decision.link if target.is_symlink() else None)
        else:
            put_photo(target, source.parent).rename(source)

    def _delete_target(self, decision: Decision) -> None:
        self._check_target(decision)
        target = self.target_of(decision)
        if self.classes is not None:
            self.classes.forget(target)
        target.unlink()
        sync_folder(target.parent)
        made = self._made | (set() if self.classes is None else self.classes.made)
        folder = target.parent
        while (folder in made or folder.is_relative_to(self.removed)) and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent

    def _check_target(self, decision: Decision) -> None:
        target = self.target_of(decision)
        if not os.path.lexists(target):
            raise InputError(f'"{target}" no longer exists: it cannot be restored.')
        if decision.digest and digest_file(target) != decision.digest:
            raise InputError(
                f'"{target}" has changed since then, so it is not removed. Delete it yourself if '
                "it does not belong there."
            )


def digest_file(path: Path) -> str:
    """blake2b-128 of the file's bytes."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _is_same(path: Path, digest: str) -> bool:
    try:
        return digest_file(path) == digest
    except OSError:
        return False


def _are_one_entry(one: Path, other: Path) -> bool:
    return (one.parent.resolve(), one.name) == (other.parent.resolve(), other.name)


def _put_link(source: Path, target: Path, link: str | None) -> None:
    """Give a photo a second path, or repeat a symbolic link; no file is ever overwritten."""
    try:
        if link is None:
            os.link(source, target)  # unlike a rename, it refuses a name that is taken
        else:
            os.symlink(link, target)
    except OSError as error:
        if link is not None or error.errno not in _NO_LINKS:
            raise
        part = copy_beside(source, target.parent)
        try:
            if os.path.lexists(target):
                raise FileExistsError(
                    errno.EEXIST, os.strerror(errno.EEXIST), str(target)
                ) from None
            part.rename(target)
        finally:
            part.unlink(missing_ok=True)
    sync_folder(target.parent)


class LabeledFolder:
    """A folder with one folder per class. It knows every file in it by length, so that no photo is
    added twice.

    `put` copies a photo into a class, if the folder belongs to a set that keeps a journal.
    """

    def __init__(self, folder: Path, put: Callable[[Path, str], Path] | None = None) -> None:
        self.folder = folder
        self.made: set[Path] = set()  # the folders of new classes
        self._put = put or self._copy
        self._class_folders: dict[str, Path] = {}
        self._by_bytes: dict[int, list[Path]] = defaultdict(list)
        remove_parts(folder)
        found = walk(folder)
        for name in found.folders:
            if "/" not in name:
                self._class_folders.setdefault(class_name(name), folder / name)
        for path in (folder / name for name in found.photos if "/" in name):
            self._by_bytes[path.stat().st_size].append(path)

    def labels(self) -> list[str]:
        return sorted(self._class_folders, key=natural_order)

    def add(self, path: Path, label: str) -> tuple[str, bool]:
        """Copy a photo into its class; an existing one is left alone. Returns its path below the
        folder, and whether it is new.

        Raises InputError when the same photo is in another class, DiskFullError.
        """
        there = self._find(path)
        for other in there:
            if self._label_of(other) == label:
                return other.relative_to(self.folder).as_posix(), False
        if there:
            raise InputError(
                f'this photo is already in the class "{self._label_of(there[0])}": '
                f'"{there[0]}". Remove it there first, choose that class, or skip.'
            )
        before = set(self.folder.iterdir())
        placed = self._put(path, label)
        self.made |= {placed.parent} - before
        alike = self._by_bytes[placed.stat().st_size]
        is_new = placed not in alike
        if is_new:
            alike.append(placed)
        return placed.relative_to(self.folder).as_posix(), is_new

    def forget(self, path: Path) -> None:
        """The photo is about to be deleted."""
        alike = self._by_bytes[path.stat().st_size]
        alike[:] = [one for one in alike if one != path]

    def _copy(self, path: Path, label: str) -> Path:
        check_photo_name(path)
        # A prediction may come from a file that somebody else has written.
        folder = self._class_folders.get(label) or self.folder / check_class_name(label)
        return put_photo(path, folder)

    def _find(self, path: Path) -> list[Path]:
        alike = [one for one in self._by_bytes.get(path.stat().st_size, ()) if one.is_file()]
        if not alike:
            return []
        digest = digest_file(path)
        return [one for one in alike if digest_file(one) == digest]

    def _label_of(self, path: Path) -> str:
        return class_name(path.relative_to(self.folder).parts[0])
