"""What is wrong with a set of photos, one finding per photo and problem, as findings.csv and
findings.json keep it."""

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from clew.base.texts import counted
from clew.pages.markup import section_texts
from clew.storage.text_files import write_csv
from clew.storage.writing import replace_json
from clew.version import __version__

FINDINGS, LISTING = "findings.json", "findings.csv"

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
    rows = (_row(finding, columns) for finding in findings)
    write_csv(folder / LISTING, columns, rows)


def _row(finding: Finding, columns: Sequence[str]) -> list[Any]:
    values = {**asdict(finding), "score": round(finding.score, 4)}
    return ["" if values[column] is None else values[column] for column in columns]
