"""A running cleaning session: findings that wait for a decision, each decision carried out at once,
and undone again."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from clew.base.errors import Call, InputError
from clew.base.progress import Reporter
from clew.base.tables import Tabular
from clew.base.texts import whole_percent
from clew.pages.review import ReviewApp
from clew.pages.server import LocalServer, open_server
from clew.patterns.cleaning.changes import (
    CHANGES,
    REMOVED,
    Action,
    Changes,
    PhotoChange,
    decided_keys,
    open_changes,
)
from clew.patterns.cleaning.findings import (
    FINDINGS,
    KINDS,
    LISTING,
    TITLES,
    Finding,
    Findings,
    Kind,
    write_findings,
)
from clew.patterns.cleaning.report import REPORT, write_clean_report
from clew.patterns.cleaning.search import CleanSettings, find_problems, look_at
from clew.patterns.library.folders import library_settings
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.library.placing import check_class_name, class_folder
from clew.patterns.photos.decode import PhotoError
from clew.patterns.photos.find import SPLIT_FOLDERS
from clew.patterns.photos.photo import natural_order
from clew.patterns.review.app import Hints, encode_photo
from clew.patterns.review.session import find_label, safe_text
from clew.patterns.trained.model import usual_device
from clew.storage.ownership import claim

if TYPE_CHECKING:
    from fastapi import FastAPI


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
    undone: tuple[PhotoChange, ...] = ()

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
    decided = decided_keys(place.folder)
    looked = look_at(place.settings(device, threads), reporter, should_stop)
    findings = find_problems(looked).without(decided)
    write_findings(place.folder, findings)
    write_clean_report(place.folder, looked, findings)
    return CleanResult(folder=place.folder, findings=findings)


@contextmanager
def open_cleaning(place: CleanPlace, findings: Findings) -> Iterator[Cleaning]:
    """Open a session, locked against other processes. Raises StoreLockedError."""

    def tell_set(change: PhotoChange) -> None:
        """So that a photo is not imported again to where it was."""
        moved = change.target if change.action != "remove" else None
        if place.pattern_set is None:
            return
        if change.step == "undo":
            place.pattern_set.note_move(moved or change.source, change.source)
        else:
            place.pattern_set.note_move(change.source, moved)

    with open_changes(findings.data, place.folder, tell_set) as changes:
        yield Cleaning(
            findings,
            changes,
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
        for _ in range(min(count, len(cleaning.changes))):
            undone.append(cleaning.undo())
        if not undone:
            raise InputError(f'there is nothing to undo: nothing was changed in "{place.data}".')
    return CleanResult(folder=place.folder, findings=nothing, undone=tuple(undone))


_SIDES = {"photos": 1200, "thumbnails": 160}
_SHOWN = 40  # findings of each kind that the page knows at a time
_BORROWED = {"review.css": ("clew.patterns.review", "page.css")}


@dataclass(frozen=True, kw_only=True)
class PageDecision:
    """A person's decision about `finding`, whose number it is; `other` means its second photo.
    `question` is the number of decisions so far that the page knew."""

    question: int
    action: Literal["keep", "remove", "relabel", "move", "later", "undo"]
    finding: int = -1
    label: str = ""
    other: bool = False


@contextmanager
def open_clean_page(
    cleaning: Cleaning, port: int = 0, hints: Hints | None = None
) -> Iterator[LocalServer]:
    """A server for the page, which stops when a person has finished there; port 0 is any free port.

    Raises InputError when the port is taken, or the packages of the extra "web" are missing.
    """
    shown = hints or Hints(train=str(cleaning.next_call), again=str(cleaning.again_call))
    with open_server(lambda stop: build_clean_app(cleaning, shown, stop), port) as server:
        yield server


def build_clean_app(cleaning: Cleaning, hints: Hints, on_done: Callable[[], None]) -> "FastAPI":
    """The application; `on_done` is called at the end."""
    from fastapi import HTTPException, Response

    built = ReviewApp(cleaning.lock, lambda: describe_cleaning(cleaning, hints), on_done)

    @built.app.get("/{size}/{number}/{which}")
    def photo(size: Literal["photos", "thumbnails"], number: int, which: int) -> Response:
        path = cleaning.path(number, other=which == 1) if which in (0, 1) else None
        if path is None:
            raise HTTPException(404)
        try:
            content = encode_photo(path, side=_SIDES[size])
        except PhotoError as error:
            return Response(error.reason, status_code=410, media_type="text/plain")
        headers = {"Cache-Control": "private, max-age=86400"}
        return Response(content, media_type="image/jpeg", headers=headers)

    @built.app.get("/report")
    def report() -> Response:
        path = cleaning.changes.folder / REPORT
        if not path.is_file():
            raise HTTPException(404)
        # It has its own scripts, and may reach nothing of this server.
        headers = {"Content-Security-Policy": "sandbox allow-scripts"}
        return Response(path.read_bytes(), media_type="text/html", headers=headers)

    @built.app.post("/answer")
    def answer(given: PageDecision) -> Response:
        return built.decide(lambda: _is_current(cleaning, given), lambda: _decide(cleaning, given))

    return built.serve_page("clew.patterns.cleaning", _BORROWED)


def _is_current(cleaning: Cleaning, given: PageDecision) -> bool:
    """Two people may decide about different findings at once; each is decided once, and "undo"
    means the decision that its page shows as the last one."""
    if given.action == "undo":
        return given.question == cleaning.place
    return cleaning.is_open(given.finding)


def _decide(cleaning: Cleaning, given: PageDecision) -> str:
    number, other = given.finding, given.other
    if given.action == "undo":
        return f"undone: {cleaning.undo().source}"
    if given.action == "keep":
        return cleaning.keep(number)
    if given.action == "later":
        return cleaning.put_off(number)
    if given.action == "remove":
        return cleaning.remove(number, other=other)
    if given.action == "move":
        return cleaning.move(number, given.label, other=other)
    return cleaning.relabel(number, given.label, other=other)


def describe_cleaning(cleaning: Cleaning, hints: Hints) -> dict[str, Any]:
    """Everything that the page shows. Photos are identified only by the finding's number."""
    counts = cleaning.count_open()
    left = sum(counts.values())
    return {
        "place": cleaning.place,
        "total": cleaning.place + left,
        "kinds": [{"kind": kind, "title": TITLES[kind], "open": counts[kind]} for kind in KINDS],
        "findings": {kind: _describe_kind(cleaning, kind) for kind in KINDS},
        "classes": [safe_text(label) for label in cleaning.classes],
        "splits": sorted(cleaning.splits),
        "counts": cleaning.counts(),
        "can_undo": cleaning.can_undo,
        "folder": safe_text(str(cleaning.data)),
        "removed": safe_text(str(cleaning.removed)),
        "command": safe_text(hints.train),
        "again": safe_text(hints.again),
    }


def _describe_kind(cleaning: Cleaning, kind: Kind) -> list[dict[str, Any]]:
    return [_describe(cleaning, number) for number in cleaning.waiting(kind)[:_SHOWN]]


def _describe(cleaning: Cleaning, number: int) -> dict[str, Any]:
    finding = cleaning.findings[number]
    photos = [(finding.name, finding.label)]
    if finding.other is not None:
        photos.append((finding.other, finding.other_label or ""))
    return {
        "number": number,
        "reason": safe_text(finding.reason),
        "score": whole_percent(finding.score),
        "suggestion": None if finding.suggestion is None else safe_text(finding.suggestion),
        "photos": [
            {"name": safe_text(name), "label": safe_text(label), "split": cleaning.split_of(name)}
            for name, label in photos
        ],
    }
