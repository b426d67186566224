"""Identify the photos of a folder: run the model, write the lists, draw the page and the sheets."""

import filecmp
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from clew.base.errors import InputError
from clew.base.progress import WorkAdvanced, WorkStarted, log_event, report_work
from clew.base.tables import Tabular
from clew.base.texts import counted
from clew.base.urls import local_path, resolved
from clew.patterns.identification.page import draw_results
from clew.patterns.identification.results import (
    IDENTIFIED_FILE,
    PAGE_FILE,
    TABLE_FILE,
    Identified,
    IdentifiedWriter,
    Tally,
    count_workers,
    default_folder,
    read_entry,
    read_identified,
    refuse_foreign,
    table_head,
    table_row,
)
from clew.patterns.library.choose import choose_model
from clew.patterns.library.pattern_set import SET_FILE, PatternSet
from clew.patterns.library.placing import candidate_names, put_photo, safe_file_name
from clew.patterns.photos.find import PhotoFolder, find_photos
from clew.patterns.settings import IdentifySettings
from clew.patterns.trained.model import PatternModel, predict_photos
from clew.storage.writing import replacing

_SOME = 10
_BATCH = 64


class ClassFolders:
    """Sorts photos into `folder`; counts what was copied, what already existed, and what was
    missing or unreadable by then. Raises InputError for an unusable folder."""

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise InputError("it is a file. Give a folder.", setting="copy_to", value=folder)
        _refuse_photos_of_a_set(folder)
        self.folder = folder
        self.copied = self.already_there = self.lost = 0

    @property
    def doubtful(self) -> Path:
        """Where doubtful photos go."""
        return self.folder / DOUBTFUL_FOLDER

    @property
    def unknown(self) -> Path:
        """Where unknown photos go."""
        return self.folder / UNKNOWN_FOLDER

    def add(self, photo: Identified) -> None:
        """Copy the photo into the folder of its class, keeping its modification time. Unreadable
        photos are not copied."""
        if photo.fault is not None:
            return
        name = DOUBTFUL_FOLDER if photo.doubtful else class_folder(photo.best[0][0])
        name = UNKNOWN_FOLDER if photo.unknown else name
        if not os.access(photo.path, os.R_OK):
            self.lost += 1
            return
        folder = self.folder / name
        names = candidate_names(folder, safe_file_name(photo.path.name))
        there = itertools.takewhile(os.path.exists, names)
        if any(filecmp.cmp(photo.path, path, shallow=False) for path in there):
            self.already_there += 1
        else:
            put_photo(photo.path, folder)
            self.copied += 1


@dataclass(frozen=True, kw_only=True, repr=False)
class IdentifyResult(Tabular):
    """The result. `counts` has photos, identified, doubtful, unknown (some of these), faulty;
    `notes` are sentences about what was excluded; `doubtful` and `faulty` are the first few of
    each, for a quick look; `copies` is None if nothing was copied."""

    folder: Path
    counts: dict[str, int]
    class_counts: list[tuple[str, int]]
    notes: tuple[str, ...]
    sheets: tuple[Path, ...]
    doubtful: tuple[Identified, ...]
    faulty: tuple[Identified, ...]
    copies: ClassFolders | None = None

    def __iter__(self) -> Iterator[Identified]:
        """All photos, in the order of their names."""
        return iter(read_identified(self.list_file).photos)

    def __len__(self) -> int:
        return self.counts["photos"]

    def __repr__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        return f"IdentifyResult({counts}; {self.folder})"

    @property
    def table(self) -> pa.Table:
        """One row per photo: name, label, confidence, doubtful, unknown, typicality, fault."""
        names = ("name", "label", "confidence", "doubtful", "unknown", "typicality")
        rows = [
            {name: getattr(photo, name) for name in names}
            | {"fault": photo.fault and photo.fault.reason}
            for photo in self
        ]
        return pa.Table.from_pylist(rows)

    @property
    def list_file(self) -> Path:
        return self.folder / IDENTIFIED_FILE

    @property
    def page(self) -> Path:
        return self.folder / PAGE_FILE


def identify_photos(given: IdentifySettings) -> IdentifyResult:
    """Identify photos and write the lists, the page and the contact sheets. Photos that cannot be
    read are listed with the reason.

    Raises InputError if there are no photos or the results would overwrite other files; StoreError
    without a model.
    """
    reporter, photos = given.reporter or log_event, Path(given.photos)
    copy_to = None if given.copy_to is None else local_path(given.copy_to)
    chosen = choose_model(given.name, model=given.model, library=given.library)
    out = default_folder(chosen.home, photos) if given.out is None else local_path(given.out)
    folder, notes = _find(photos, {"out": out, "copy_to": copy_to})
    refuse_foreign(out)
    copies = ClassFolders(copy_to) if copy_to is not None else None
    model = chosen.load(given.device)
    out.mkdir(parents=True, exist_ok=True)
    tally = Tally(model.classes)
    settings = {
        "folder": str(photos.resolve()),
        "model": str(resolved(chosen.model)),
        "threshold": given.threshold,
        "unknown": given.unknown,
        "top_k": min(given.top_k, len(model.classes)),
        "copied_to": copy_to and str(copy_to.resolve()),
        "classes": list(model.classes),
    }
    count = len(folder.photos) + len(folder.faults)
    started = WorkStarted(
        noun="photos", planned=count, estimate=f"{counted(count, 'photo')} to identify"
    )
    with ExitStack() as files:
        files.enter_context(report_work(reporter, started))
        lines = files.enter_context(replacing(out / IDENTIFIED_FILE))
        rows = files.enter_context(replacing(out / TABLE_FILE))
        writer = IdentifiedWriter(lines, settings)
        rows.write(table_head())
        for photo in _identify(given, model, folder):
            tally.add(photo, writer.add(photo))
            rows.write(table_row(photo))
            if copies is not None:
                copies.add(photo)
            reporter(WorkAdvanced())
        writer.end(tally.counts())
    sheets, left_off = draw_results(out, settings, tally, thumbnails=given.thumbnails)
    lost = copies.lost if copies is not None else 0
    missing = f"{counted(lost, 'photo')} could not be copied: missing or no longer readable."
    return IdentifyResult(
        folder=out,
        counts=tally.counts(),
        class_counts=tally.class_counts(),
        notes=tuple(filter(None, (*notes, left_off, missing if lost else ""))),
        sheets=tuple(sheets),
        doubtful=_read_some(out, tally.doubtful(_SOME)),
        faulty=_read_some(out, tally.faulty(_SOME)),
        copies=copies,
    )


def _read_some(folder: Path, places: Int64[np.ndarray, " some"]) -> tuple[Identified, ...]:
    with (folder / IDENTIFIED_FILE).open("rb") as lines:
        return tuple(read_entry(lines, place) for place in places.tolist())


def _find(photos: Path, places: Mapping[str, Path | None]) -> tuple[PhotoFolder, list[str]]:
    """The photos, without those that an earlier run has put among them, into one of `places`."""
    folder = find_photos(photos)
    results = [fault for fault in folder.faults if fault.kind == "results"]
    folder = replace(folder, faults=tuple(f for f in folder.faults if f.kind != "results"))
    notes = [f'"{fault.name}" was skipped: {fault.reason}.' for fault in results]
    for setting, ours in places.items():
        if ours is not None and photos.is_dir():
            folder = _exclude(folder, ours, setting, notes)
    if not folder.photos and not folder.faults:
        raise InputError(
            f'"{photos}" contains no photos other than earlier results: give another folder.'
        )
    return folder, notes


def _exclude(folder: PhotoFolder, ours: Path, setting: str, notes: list[str]) -> PhotoFolder:
    place = _inside(folder.root, ours, setting)
    if place is None:
        return folder
    photos = tuple(photo for photo in folder.photos if not photo.name.startswith(place))
    if left := len(folder.photos) - len(photos):
        notes.append(
            f'{counted(left, "photo")} in "{ours}" skipped: that folder is the `{setting}` folder.'
        )
    faults = tuple(fault for fault in folder.faults if not fault.name.startswith(place))
    return replace(folder, photos=photos, faults=faults)


def _inside(root: Path, ours: Path, setting: str) -> str | None:
    """The path of `ours` relative to `root`, as a prefix of photo names; None if it is not below
    `root`."""
    place = os.path.relpath(ours.resolve(), root.resolve())
    if place == ".":
        raise InputError(
            "this is the photo folder itself. Choose another one to keep results and photos apart.",
            setting=setting,
            value=ours,
        )
    is_outside = place.startswith("..") or os.path.isabs(place)
    return None if is_outside else f"{Path(place).as_posix()}/"


def _identify(
    given: IdentifySettings, model: PatternModel, folder: PhotoFolder
) -> Iterator[Identified]:
    for fault in folder.faults:
        path = folder.root / fault.name
        yield Identified(name=fault.name, path=path, best=(), doubtful=False, fault=fault)
    for found in predict_photos(model, folder.photos, batch_size=_BATCH, workers=count_workers()):
        best = tuple(found.top_k(given.top_k))
        is_unknown = found.is_unknown(given.unknown)
        yield Identified(
            name=found.photo.name,
            path=found.photo.path,
            best=best,
            doubtful=is_unknown or (bool(best) and best[0][1] < given.threshold),
            fault=found.fault,
            unknown=is_unknown,
            typicality=found.typicality,
        )


DOUBTFUL_FOLDER, UNKNOWN_FOLDER = "_doubtful", "_unknown"
# What some file systems do not allow in a name, and what would lead out of the folder.
_UNSAFE = re.compile(r'[\x00-\x1f<>:"/\\|?*]')


def _refuse_photos_of_a_set(folder: Path) -> None:
    """Raise InputError for the photos folder of a set: there, a prediction would be trained on as
    if a person had confirmed it."""
    whole = folder.resolve()
    for place in (whole, *whole.parents):
        if (place.parent / SET_FILE).is_file() and place.name == "photos":
            owner = PatternSet(name=place.parent.name, folder=place.parent)
            raise InputError(
                f'it contains the photos of the set "{owner.name}", but predictions may be '
                "wrong. Choose another folder, or add photos to the set with ",
                owner.call("review_photos", owner.name, every=True),
                ".",
                setting="copy_to",
                value=folder,
            )


def class_folder(label: str) -> str:
    """A class as a folder name that cannot lead out of its parent folder, whatever the class is
    called."""
    name = _UNSAFE.sub("_", label).strip(" .") or "_"
    return f"{name}_" if name in (DOUBTFUL_FOLDER, UNKNOWN_FOLDER) else name
