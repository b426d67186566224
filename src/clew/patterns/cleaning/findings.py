"""What is wrong with a set of photos, one finding per photo and problem, as findings.csv and
findings.json keep it; where the photos are, and the result."""

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from clew.base.errors import Call, InputError
from clew.base.tables import Tabular
from clew.base.texts import counted
from clew.base.urls import local_path
from clew.pages.markup import section_texts
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.review.journal import Decision
from clew.patterns.settings import OfPhotos
from clew.storage.text_files import write_csv
from clew.storage.writing import replace_json
from clew.version import __version__

FINDINGS, LISTING, REPORT = "findings.json", "findings.csv", "report.html"

Kind = Literal["label", "leak", "duplicate", "overlap", "outlier", "quality"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PACKAGE = "clew.patterns.cleaning"  # its sections.toml has the texts of the report
TITLES = {kind: section_texts(PACKAGE, kind, count="")["short"] for kind in KINDS}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A photo (`name`, its path in the folder) and what is wrong with it.

    `suggestion` is the class that it probably is, `other` the photo that it is a duplicate of,
    `score` how sure the finding is (0 to 1). `digest` and `other_digest` are those of the images:
    a person's decision holds for an image, whatever its file is called.
    """

    kind: Kind
    name: str
    label: str
    score: float
    reason: str
    digest: str
    suggestion: str | None = None
    other: str | None = None
    other_label: str | None = None
    other_digest: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The same for the same finding about the same images, in another run too."""
        return (self.kind, *sorted((self.digest, self.other_digest or "")))


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two classes that look alike: `share` of their photos, `photos` in number, resemble the other
    class more than their own."""

    first: str
    second: str
    share: float
    photos: int


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The findings about the photos in `data`, by kind, the surest first. `excluded` counts the
    files that could not be looked at, by reason; `notes` are remarks for the user. With
    `split_folders`, the folders in `data` are splits, else classes."""

    data: Path
    photos: int
    classes: tuple[str, ...]
    findings: tuple[Finding, ...]
    overlaps: tuple[Overlap, ...] = ()
    excluded: dict[str, int]
    split_folders: bool = False
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def counts(self) -> dict[str, int]:
        """The number of findings of each kind, in the order of KINDS."""
        found = Counter(finding.kind for finding in self.findings)
        return {kind: found[kind] for kind in KINDS}

    def without(self, decided: Container[tuple[str, ...]]) -> "Findings":
        """The findings that nobody has decided about; a note says how many others there are."""
        left = tuple(finding for finding in self.findings if finding.key not in decided)
        gone = len(self.findings) - len(left)
        if not gone:
            return self
        note = f"{counted(gone, 'finding')} not listed: you have decided about them before."
        return replace(self, findings=left, notes=(*self.notes, note))

    def describe(self) -> dict[str, Any]:
        """What findings.json holds."""
        return {
            "format": "clew-clean",
            "version": 1,
            "clew_version": __version__,
            "data": str(self.data),
            "photos": self.photos,
            "classes": list(self.classes),
            "counts": self.counts,
            "split_folders": self.split_folders,
            "excluded": self.excluded,
            "notes": list(self.notes),
            "overlaps": [asdict(overlap) for overlap in self.overlaps],
            "findings": [asdict(finding) for finding in self.findings],
        }


def write_findings(folder: Path, findings: Findings) -> None:
    """Write findings.json and findings.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_json(folder / FINDINGS, findings.describe())
    columns = ("kind", "name", "label", "suggestion", "other", "score", "reason")
    found = ({**asdict(one), "score": round(one.score, 4)} for one in findings)
    rows = (["" if one[name] is None else one[name] for name in columns] for one in found)
    write_csv(folder / LISTING, columns, rows)


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
    def choose(cls, given: OfPhotos) -> "CleanPlace":
        """Whose photos, and where the findings go. Raises InputError."""
        if given.data is not None and given.name is not None:
            raise InputError(
                f'the set "{given.name}" and `data` "{given.data}" cannot be combined: give only '
                "one of them."
            )
        out = None if given.out is None else local_path(given.out)
        if given.data is not None:
            return cls.of_folder(Path(given.data), out)
        library, instead = Path(given.library), "a folder of photos as `data`"
        return cls.of_set(PatternSet.open(given.name, library, otherwise=instead), out)

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

    def call(self) -> Call:
        """The call that shows what is left to decide."""
        settings = ({} if self.out is None else {"out": str(self.out)}) | {"web": True}
        if self.pattern_set is None:
            return Call("clew.patterns.clean_photos", (str(self.data),), settings)
        return self.pattern_set.call("clean_photos", name=self.pattern_set.name, **settings)

    def call_to_train(self) -> Call:
        if self.pattern_set is not None:
            return self.pattern_set.call("train", name=self.pattern_set.name)
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
