"""A folder of files at a path or at a URL, behind one small interface. What never leaves the disk
keeps using `Path`s."""

from clew.base.urls import UrlPath, as_path, is_url, local_path
from clew.storage.places.folder import FolderPlace
from clew.storage.places.opening import open_place
from clew.storage.places.place import (
    AccessDeniedError,
    ChangedError,
    Content,
    Entry,
    Place,
    Range,
    UnreachableError,
)

__all__ = [
    "AccessDeniedError",
    "ChangedError",
    "Content",
    "Entry",
    "FolderPlace",
    "Place",
    "Range",
    "UnreachableError",
    "UrlPath",
    "as_path",
    "is_url",
    "local_path",
    "open_place",
]
