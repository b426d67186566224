"""The settings of an identification: the photos, the model, and the folder for the results. Only
files that clew wrote are replaced."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.base.errors import InputError
from clew.base.urls import resolved
from clew.engine.planning.hardware import look_at_machine
from clew.patterns.identification.results import (
    IDENTIFIED_FILE,
    IDENTIFIED_FOLDER,
    MADE_BY,
    TABLE_HEAD,
    read_settings,
)
from clew.patterns.trained.unknown import USUAL_UNKNOWN

_MOST_WORKERS = 8
PAGE_FILE, TABLE_FILE = "identified.html", "identified.csv"
SHEET_NAME = "contact_sheet"


@dataclass(frozen=True, kw_only=True)
class IdentifyConfig:
    """The settings of an identification. `photos` is a folder or one photo. Photos whose most
    likely class has a probability below `threshold` are doubtful; those with a typicality below
    `unknown` are unknown. `thumbnails` is the number of photos that the page and the contact sheets
    show. `copy_to` gets copies of the photos, one folder per class."""

    photos: Path
    model: Path
    out: Path
    top_k: int = 3
    threshold: float = 0.6
    unknown: float = USUAL_UNKNOWN
    copy_to: Path | None = None
    thumbnails: int = 500
    batch_size: int = 64
    workers: int = field(default_factory=lambda: min(_MOST_WORKERS, look_at_machine().cores))
    device: str | None = None

    def __post_init__(self) -> None:
        check_top_k(self.top_k)
        check_threshold(self.threshold)
        check_unknown(self.unknown)
        if self.thumbnails < 0:
            raise InputError("it must be 0 or more.", setting="thumbnails", value=self.thumbnails)

    def as_settings(self, classes: tuple[str, ...]) -> dict[str, Any]:
        """What identified.json says about how it was made."""
        return {
            "folder": str(self.photos.resolve()),
            "model": str(resolved(self.model)),
            "threshold": self.threshold,
            "unknown": self.unknown,
            "top_k": min(self.top_k, len(classes)),
            "copied_to": self.copy_to and str(self.copy_to.resolve()),
            "classes": list(classes),
        }


def check_top_k(top_k: int) -> None:
    if top_k < 1:
        raise InputError(
            "it must be 1 or more: the number of top predictions to report per photo.",
            setting="top_k",
            value=top_k,
        )


def check_threshold(threshold: float) -> None:
    if not 0 <= threshold <= 1:
        raise InputError(
            "it must be a probability from 0 to 1. Photos with a lower confidence are marked as "
            "doubtful.",
            setting="threshold",
            value=threshold,
        )


def check_unknown(unknown: float) -> None:
    if not 0 <= unknown < 1:
        raise InputError(
            "it must be 0 (no photo is unknown) or more, and less than 1: about this share of the "
            "photos that do show a known class is marked as unknown too.",
            setting="unknown",
            value=unknown,
        )


def sheet_file(page: int) -> str:
    """contact_sheet.jpg, contact_sheet_2.jpg, ...; `page` counts from 0."""
    return f"{SHEET_NAME}.jpg" if page == 0 else f"{SHEET_NAME}_{page + 1}.jpg"


def default_folder(home: Path, photos: Path) -> Path:
    """`home`/identified/NAME, where NAME is that of the photos' folder; if another folder of the
    same name was identified before, it keeps its place, and this one gets NAME-2."""
    photos = photos.resolve()
    name = photos.name or "photos"
    folder, number = home / IDENTIFIED_FOLDER / name, 1
    while not _is_free(folder, photos):
        number += 1
        folder = folder.with_name(f"{name}-{number}")
    return folder


def _is_free(folder: Path, photos: Path) -> bool:
    file = folder / IDENTIFIED_FILE
    settings = read_settings(file)
    return not file.exists() or (settings is not None and settings.get("folder") == str(photos))


def refuse_foreign(folder: Path) -> None:
    """Raise InputError if the results would overwrite files that clew did not write; results of an
    earlier run are replaced."""
    if folder.exists() and not folder.is_dir():
        raise InputError("it is a file. Give a folder.", setting="out", value=folder)
    for path in (
        folder / IDENTIFIED_FILE,
        folder / PAGE_FILE,
        folder / TABLE_FILE,
        *_sheets(folder),
    ):
        if path.exists() and not _is_ours(path):
            raise InputError(
                f'"{path}" was not written by "{MADE_BY}", so it is not overwritten: choose '
                "another `out`, or move that file."
            )


def remove_sheets(folder: Path, pages: int) -> None:
    """Delete the surplus contact sheets of an earlier run."""
    kept = {sheet_file(page) for page in range(pages)}
    for path in _sheets(folder):
        if path.name not in kept and path.exists() and _is_ours(path):
            path.unlink()


def _sheets(folder: Path) -> list[Path]:
    numbered = [path for path in folder.glob(f"{SHEET_NAME}_*.jpg") if path.stem[14:].isdigit()]
    return [folder / sheet_file(0), *numbered]


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        opening = file.read(2048)
    return MADE_BY.encode() in opening or opening.lstrip(b"\xef\xbb\xbf").startswith(
        TABLE_HEAD.encode()
    )
