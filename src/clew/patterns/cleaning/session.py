"""A cleaning session: findings that wait for a decision, each decision carried out at once, and
undone again; where the photos are, and what was found."""

import os
import webbrowser
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from clew.base.errors import Call, InputError
from clew.base.terminal import TextConsole, print_line
from clew.base.texts import for_terminal, whole_percent
from clew.patterns.cleaning.findings import (
    FINDINGS,
    KINDS,
    LISTING,
    REPORT,
    TITLES,
    CleanPlace,
    CleanResult,
    Finding,
    Findings,
    Kind,
    write_findings,
)
from clew.patterns.cleaning.report import write_clean_report
from clew.patterns.cleaning.search import find_problems, look_at
from clew.patterns.library.placing import class_folder, lies_inside, only_one
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
from clew.patterns.review.review import open_page
from clew.patterns.review.session import Say, Session
from clew.patterns.settings import CleanSettings
from clew.storage.ownership import claim

CHANGES = "changes.jsonl"
_SHOWN = 40  # findings of each kind that the page knows at a time
# The counts of a session, by what was done.
DONE: dict[Action, str] = {
    "relabel": "relabeled",
    "move": "moved",
    "remove": "removed",
    "keep": "kept",
}


@dataclass(frozen=True, kw_only=True)
class PageDecision:
    """A person's decision about `finding`, whose number it is; `other` means its second photo.
    `question` is the number of decisions so far that the page knew."""

    question: int
    action: Literal["keep", "remove", "relabel", "move", "later", "undo"]
    finding: int = -1
    label: str = ""
    other: bool = False


class Cleaning(Session):
    """The open findings, by number. A finding is settled by a decision about it, and when one of
    its photos is moved away."""

    PACKAGE, Answer = "clew.patterns.cleaning", PageDecision
    SIDES = {"photos": 1200, "thumbnails": 160}

    def __init__(
        self, findings: Findings, decisions: Decisions, *, next_call: Call, again_call: Call
    ) -> None:
        super().__init__(decisions, findings.classes, next_call=next_call, again_call=again_call)
        self.data = findings.data
        self._decided = {decision.key for decision in decisions.journal}
        self.findings = tuple(one for one in findings if self._is_asked(one))
        self.splits: dict[str, str] = {}  # the folder of each split
        for folder in sorted(self.data.iterdir()) if findings.split_folders else ():
            if folder.is_dir() and (split := SPLIT_FOLDERS.get(folder.name.casefold())):
                self.splits[split] = folder.name
        self._moved: dict[str, Path] = {}  # where photos went in this session, by their names
        self._later: list[int] = []

    def counts(self) -> dict[str, int]:
        """How many photos this session relabeled, moved, removed and kept."""
        found = Counter(decision.action for decision in self._made if decision is not None)
        return {name: found[action] for action, name in DONE.items()}

    @property
    def report(self) -> Path:
        return self.decisions.journal.path.with_name(REPORT)

    def waiting(self, kind: Kind) -> list[int]:
        """The numbers of the open findings of a kind; those put off come last."""
        found = [
            number
            for number, finding in enumerate(self.findings)
            if finding.kind == kind and self.is_open(number)
        ]
        order = {number: place for place, number in enumerate(self._later)}
        return sorted(found, key=lambda number: order.get(number, -1))

    def is_open(self, number: int) -> bool:
        """Whether a finding waits for a decision."""
        if not 0 <= number < len(self.findings):
            return False
        finding = self.findings[number]
        is_moved = any(name in self._moved for name in (finding.name, finding.other))
        return finding.key not in self._decided and not is_moved

    def path(self, number: int, *, other: bool = False) -> Path | None:
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
        label, name = self._find_class(label), self._name(finding, other=other)
        if label == (finding.other_label if other else finding.label):
            raise InputError(f'the photo is already in the class "{label}": keep it.')
        # The folder whose folders are classes.
        above = self.data / Path(name).parts[0] if self.splits else self.data
        folder = class_folder(above, label)
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
        self._made = [one for one in self._made if one and one.number != undone.number]
        return undone

    def is_current(self, given: PageDecision) -> bool:
        """Two people may decide about different findings at once; each is decided once, and "undo"
        means the decision that its page shows as the last one."""
        if given.action == "undo":
            return given.question == self.place
        return self.is_open(given.finding)

    def carry_out(self, given: PageDecision) -> str:
        number, other = given.finding, given.other
        if given.action == "undo":
            return f"undone: {self.undo().source}"
        if given.action == "keep":
            return self.keep(number)
        if given.action == "later":
            return self.put_off(number)
        if given.action == "remove":
            return self.remove(number, other=other)
        if given.action == "move":
            return self.move(number, given.label, other=other)
        return self.relabel(number, given.label, other=other)

    def describe(self, say: Say) -> dict[str, Any]:
        waiting = {kind: self.waiting(kind) for kind in KINDS}
        return {
            **super().describe(say),
            "total": self.place + sum(map(len, waiting.values())),
            "kinds": [
                {"kind": kind, "title": TITLES[kind], "open": len(waiting[kind])} for kind in KINDS
            ],
            "findings": {
                kind: [self._describe(number) for number in numbers[:_SHOWN]]
                for kind, numbers in waiting.items()
            },
            "classes": [for_terminal(label) for label in self.classes],
            "splits": sorted(self.splits),
            "counts": self.counts(),
            "can_undo": len(self.decisions.journal) > 0,
            "folder": for_terminal(str(self.data)),
            "removed": for_terminal(str(self.decisions.removed)),
        }

    def _describe(self, number: int) -> dict[str, Any]:
        finding = self.findings[number]
        photos = [(finding.name, finding.label)]
        if finding.other is not None:
            photos.append((finding.other, finding.other_label or ""))
        splits = SPLIT_FOLDERS if self.splits else {}
        return {
            "number": number,
            "reason": for_terminal(finding.reason),
            "score": whole_percent(finding.score),
            "suggestion": finding.suggestion and for_terminal(finding.suggestion),
            "photos": [
                {
                    "name": for_terminal(name),
                    "label": for_terminal(label),
                    "split": splits.get(Path(name).parts[0].casefold()),
                }
                for name, label in photos
            ],
        }

    def tell_end(self, say: Say) -> list[str]:
        """What was decided, what is left, and what to do now, in lines."""
        counts = self.counts()
        left = sum(len(self.waiting(kind)) for kind in KINDS)
        rest = f"; {left:,} left, continue with: {say(self.again_call)}" if left else ""
        lines = [f"{', '.join(f'{count:,} {name}' for name, count in counts.items())}{rest}"]
        if counts["removed"]:
            back = say("`undo`")
            lines.append(
                f"removed photos are in {self.decisions.removed}; {back} N brings them back"
            )
        if any(counts[name] for name in ("relabeled", "moved", "removed")):
            lines.append(f"train on the cleaned photos with: {say(self.next_call)}")
        return lines

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

    def _name(self, finding: Finding, *, other: bool) -> str:
        name = finding.other if other else finding.name
        if name is None:
            raise InputError("this finding is about one photo only.")
        return name


def search_problems(place: CleanPlace, given: CleanSettings) -> CleanResult:
    """Look for problems and write the lists. What a person has decided about is not listed
    again."""
    place.folder.mkdir(parents=True, exist_ok=True)
    claim(place.folder, (FINDINGS, LISTING, REPORT, CHANGES, REMOVED))
    # While a session may be running, and without waiting for it.
    known = read_journal(place.folder / CHANGES, inside=True)[0].values()
    decided = {one.key for one in known if one.step == "done"}
    looked = look_at(place.data, place.cache, given)
    findings = find_problems(looked).without(decided)
    write_findings(place.folder, findings)
    write_clean_report(place.folder, looked, findings)
    return CleanResult(folder=place.folder, findings=findings)


def decide_on_page(
    place: CleanPlace,
    findings: Findings,
    given: CleanSettings,
    console: Console | None = None,
    say: Say = str,
) -> None:
    """Let a person decide about the findings in the browser; `say` gives the text of a call for
    hints. Raises StoreLockedError, and InputError if the port is taken."""
    console = console or TextConsole(soft_wrap=True)
    with (
        open_cleaning(place, findings) as cleaning,
        open_page(cleaning, given.port, say) as server,
    ):
        print_line(console, f"page: {server.address}")
        print_line(console, "finish there or press Ctrl-C here; your decisions are saved")
        if given.browser:
            webbrowser.open(server.address)
        try:
            server.run()
        finally:
            for line in cleaning.tell_end(say):
                print_line(console, line)


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
