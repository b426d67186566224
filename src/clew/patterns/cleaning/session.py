"""A running cleaning session: findings that wait for a decision, each decision carried out at once,
and undone again."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from clew.base.errors import Call, InputError
from clew.base.progress import Reporter
from clew.base.tables import Tabular
from clew.patterns.cleaning.findings import (
    FINDINGS,
    LISTING,
    Finding,
    Findings,
    Kind,
    write_findings,
)
from clew.patterns.cleaning.report import REPORT, write_clean_report
from clew.patterns.cleaning.search import CleanSettings, find_problems, look_at
from clew.patterns.library.folders import library_settings
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.library.placing import check_class_name, class_folder, lies_inside, only_one
from clew.patterns.photos.find import SPLIT_FOLDERS
from clew.patterns.photos.photo import SUFFIXES, natural_order
from clew.patterns.review.journal import (
    REMOVED,
    Action,
    Decision,
    DecisionJournal,
    Decisions,
    read_journal,
)
from clew.patterns.review.session import find_label
from clew.patterns.trained.model import usual_device
from clew.storage.ownership import claim

CHANGES = "changes.jsonl"
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
        decisions: Decisions,
        *,
        next_call: Call,
        again_call: Call,
    ) -> None:
        self.data, self.decisions = findings.data, decisions
        self.classes = list(findings.classes)
        self.next_call, self.again_call = next_call, again_call
        self.lock = threading.RLock()
        self._decided = {decision.key for decision in decisions.journal}
        self.findings = tuple(one for one in findings if self._is_asked(one))
        self.splits = _find_splits(self.data) if findings.split_folders else {}
        self._moved: dict[str, Path] = {}  # where photos went in this session, by their names
        self._made: list[Decision] = []
        self._later: list[int] = []

    @property
    def place(self) -> int:
        """The number of decisions in this session."""
        return len(self._made)

    def counts(self) -> dict[str, int]:
        """How many photos this session relabeled, moved, removed and kept."""
        found = Counter(decision.action for decision in self._made)
        return {name: found[action] for action, name in DONE.items()}

    def waiting(self, kind: Kind) -> list[int]:
        """The numbers of the open findings of a kind; those put off come last."""
        found = [
            number
            for number, finding in enumerate(self.findings)
            if finding.kind == kind and self.is_open(number)
        ]
        return sorted(found, key=lambda number: self._put_off(number))

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
        self._decide(finding, "keep", finding.name)
        return f"kept: {finding.name}"

    def remove(self, number: int, *, other: bool = False) -> str:
        """Move a photo into the folder of removed ones."""
        finding = self.findings[number]
        name = self._name(finding, other=other)
        self._decide(finding, "remove", name, Path(name).parent)
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
        self._decide(finding, "relabel", name, folder.relative_to(self.data))
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
        self._decide(finding, "move", name, Path(self.splits[split], *inside))
        return f"{split}: {name} was moved there"

    def put_off(self, number: int) -> str:
        """Ask about the finding after all others of its kind."""
        if number in self._later:
            self._later.remove(number)
        self._later.append(number)
        return f"later: {self.findings[number].name}"

    def undo(self) -> Decision:
        """Undo the latest decision, of this session or an earlier one. Raises InputError if there
        is none, or the photo cannot be put back."""
        latest = max(self.decisions.journal, key=lambda one: one.number, default=None)
        if latest is None:
            raise InputError("there is nothing to undo: nothing was changed.")
        undone = self.decisions.undo(latest)
        self._decided.discard(undone.key)
        if undone.action != "keep":
            self._moved.pop(undone.source, None)
        self._made = [decision for decision in self._made if decision.number != undone.number]
        return undone

    def split_of(self, name: str) -> str | None:
        """The split folder that a photo is in."""
        return SPLIT_FOLDERS.get(Path(name).parts[0].casefold()) if self.splits else None

    def _decide(
        self, finding: Finding, action: Action, name: str, folder: Path | None = None
    ) -> None:
        """Carry out a decision: the photo goes into `folder`, if given. Raises InputError if it is
        missing."""
        path = self.data / name
        if not lies_inside(name) or path.suffix.lower() not in SUFFIXES:
            raise InputError(f'"{name}" is not a photo of "{self.data}".')
        try:
            found = path.stat()
            link = os.readlink(path) if path.is_symlink() else None
        except OSError as error:
            raise InputError(
                f'the photo "{path}" can no longer be read ({error.strerror}): look for problems '
                "again."
            ) from None
        decision = Decision(
            action=action,
            source=name,
            target=None if folder is None else (folder / path.name).as_posix(),
            moves=folder is not None,
            is_new=folder is not None,
            bytes=found.st_size,
            modified_ns=found.st_mtime_ns,
            key=finding.key,
            link=link,
        )
        decision = self.decisions.note(decision) if folder is None else self._move(decision)
        self._made.append(decision)
        self._decided.add(decision.key)

    def _move(self, decision: Decision) -> Decision:
        done = self.decisions.carry_out(decision)
        if not done.moves:
            self.decisions.undo(done)
            raise InputError(
                f'"{self.decisions.source_of(done)}" cannot be removed from its folder: check the '
                "permissions. Nothing was changed."
            )
        self._moved[done.source] = self.decisions.target_of(done)
        return done

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


@dataclass(frozen=True, kw_only=True)
class CleanPlace:
    """The photos in `data`; `folder` takes the findings, the journal of changes and the removed
    photos, `cache` what can be computed again."""

    data: Path
    folder: Path
    cache: Path
    pattern_set: PatternSet | None = None
    out: Path | None = None  # the folder, if it was chosen

    @classmethod
    def of_folder(cls, data: Path, out: Path | None = None) -> "CleanPlace":
        whole = data.expanduser().absolute()
        folder = out or whole.resolve().parent / f"{whole.resolve().name}-clean"
        if folder.absolute() == whole:
            raise InputError(
                "it contains the photos: choose another folder.", setting="out", value=out
            )
        return cls(data=data, folder=folder, cache=folder / "cache", out=out)

    @classmethod
    def of_set(cls, pattern_set: PatternSet, out: Path | None = None) -> "CleanPlace":
        folder = out or pattern_set.folder / "clean"
        return cls(
            data=pattern_set.photos,
            folder=folder,
            cache=pattern_set.cache,
            pattern_set=pattern_set,
            out=out,
        )

    def settings(self, device: str | None, threads: int | None) -> CleanSettings:
        return CleanSettings(
            data=self.data, cache=self.cache, device=str(usual_device(device)), threads=threads
        )

    def call(self) -> Call:
        """The call that shows what is left to decide."""
        chosen = {} if self.out is None else {"out": str(self.out)}
        if self.pattern_set is None:
            return Call("clew.patterns.clean_photos", (str(self.data),), {**chosen, "web": True})
        where = library_settings(self.pattern_set.library)
        settings = {"name": self.pattern_set.name, **where, **chosen, "web": True}
        return Call("clew.patterns.clean_photos", (), settings)

    def call_to_train(self) -> Call:
        if self.pattern_set is not None:
            return self.pattern_set.call_to_train()
        return Call("clew.patterns.train", (), {"data": str(self.data), "out": "trained"})


@dataclass(frozen=True, kw_only=True, repr=False)
class CleanResult(Tabular):
    """What was found, and in `folder` the lists and the report. `undone` are the changes that were
    undone instead."""

    folder: Path
    findings: Findings
    undone: tuple[Decision, ...] = ()

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def counts(self) -> dict[str, int]:
        """The number of findings of each kind."""
        return self.findings.counts

    @property
    def list_file(self) -> Path:
        return self.folder / LISTING

    @property
    def json_file(self) -> Path:
        return self.folder / FINDINGS

    @property
    def report(self) -> Path:
        """The findings with their photos."""
        return self.folder / REPORT

    @property
    def table(self) -> pa.Table:
        """One row per finding."""
        return pa.Table.from_pylist([asdict(finding) for finding in self.findings], _schema())

    def __repr__(self) -> str:
        shown = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items() if count)
        return f"CleanResult({shown or 'no findings'}; {self.folder})"


def _schema() -> pa.Schema:
    texts = ("kind", "name", "label", "reason", "digest", "suggestion", "other", "other_label")
    names = (*texts, "other_digest")
    return pa.schema([*((name, pa.string()) for name in names), ("score", pa.float64())])


def search_problems(
    place: CleanPlace,
    *,
    device: str | None,
    threads: int | None,
    reporter: Reporter | None,
    should_stop: Callable[[], bool],
) -> CleanResult:
    """Look for problems and write the lists. What a person has decided about is not listed
    again."""
    place.folder.mkdir(parents=True, exist_ok=True)
    claim(place.folder, (FINDINGS, LISTING, REPORT, CHANGES, REMOVED))
    # While a session may be running, and without waiting for it.
    decided = {
        one.key
        for one in read_journal(place.folder / CHANGES, inside=True)[0].values()
        if one.step == "done"
    }
    looked = look_at(place.settings(device, threads), reporter, should_stop)
    findings = find_problems(looked).without(decided)
    write_findings(place.folder, findings)
    write_clean_report(place.folder, looked, findings)
    return CleanResult(folder=place.folder, findings=findings)


@contextmanager
def open_cleaning(place: CleanPlace, findings: Findings) -> Iterator[Cleaning]:
    """Open a session, locked against other processes. Raises StoreLockedError."""

    def tell_set(change: Decision) -> None:
        """So that a photo is not imported again to where it was."""
        moved = change.target if change.action != "remove" else None
        if place.pattern_set is None:
            return
        if change.step == "undo":
            place.pattern_set.note_move(moved or change.source, change.source)
        else:
            place.pattern_set.note_move(change.source, moved)

    place.folder.mkdir(parents=True, exist_ok=True)
    message = (
        f'another session is cleaning "{findings.data}": finish that one first ("Finish" on its '
        "page)."
    )
    with only_one(place.folder / ".clean.lock", message):
        journal = DecisionJournal(place.folder / CHANGES, inside=True)
        yield Cleaning(
            findings,
            Decisions(journal, findings.data, moved=tell_set),
            next_call=place.call_to_train(),
            again_call=place.call(),
        )


def undo_changes(place: CleanPlace, count: int) -> CleanResult:
    """Undo the latest `count` changes. Raises InputError if there are none."""
    if count < 0:
        raise InputError("give 1 or more.", setting="undo", value=count)
    nothing = Findings(data=place.data.absolute(), photos=0, classes=(), findings=(), excluded={})
    undone = []
    with open_cleaning(place, nothing) as cleaning:
        for _ in range(min(count, len(cleaning.decisions.journal))):
            undone.append(cleaning.undo())
        if not undone:
            raise InputError(f'there is nothing to undo: nothing was changed in "{place.data}".')
    return CleanResult(folder=place.folder, findings=nothing, undone=tuple(undone))
