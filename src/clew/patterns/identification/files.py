"""The files of an identification: where they go by default, replaced only when they are ours."""

from pathlib import Path

from clew.errors import InputError
from clew.patterns.identification.results import (
    IDENTIFIED_FILE,
    IDENTIFIED_FOLDER,
    MADE_BY,
    read_settings,
)

PAGE_FILE, TABLE_FILE = "identified.html", "identified.csv"
SHEET_NAME = "contact_sheet"
# How a table of ours begins; the other files bear MADE_BY.
TABLE_HEAD = "name,class,probability,doubtful,second,second_probability,fault"


def sheet_file(page: int) -> str:
    """contact_sheet.jpg, contact_sheet_2.jpg, ...; `page` counts from 0."""
    return f"{SHEET_NAME}.jpg" if page == 0 else f"{SHEET_NAME}_{page + 1}.jpg"


def default_folder(home: Path, photos: Path) -> Path:
    """`home`/identified/NAME, NAME being that of the photos' folder; another folder of the same
    name that was identified before keeps its place, and this one gets NAME-2."""
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
    """Results of an earlier run are replaced, somebody's own files are not."""
    if folder.exists() and not folder.is_dir():
        raise InputError("that is a file, name a folder.", setting="output_dir", value=folder)
    for path in (
        folder / IDENTIFIED_FILE,
        folder / PAGE_FILE,
        folder / TABLE_FILE,
        *_sheets(folder),
    ):
        if path.exists() and not _is_ours(path):
            raise InputError(
                f'"{path}" was not written by "{MADE_BY}", so it is left as it is: choose another '
                f"`output_dir`, or move that file away."
            )


def remove_sheets(folder: Path, pages: int) -> None:
    """Contact sheets of an earlier run that had more of them."""
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
