"""Prepares a cleaning session: whose photos, where the findings and removed photos go, what comes
next."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from clew.base.errors import Call, InputError
from clew.base.progress import Reporter
from clew.base.tables import Tabular
from clew.patterns.cleaning.changes import (
    CHANGES,
    REMOVED,
    PhotoChange,
    decided_keys,
    open_changes,
)
from clew.patterns.cleaning.findings import FINDINGS, LISTING, Finding, Findings, write_findings
from clew.patterns.cleaning.report import REPORT, write_clean_report
from clew.patterns.cleaning.run import CleanSettings, find_problems, look_at
from clew.patterns.cleaning.session import Cleaning
from clew.patterns.library.folders import library_settings
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.trained.model import usual_device
from clew.storage.ownership import claim


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
