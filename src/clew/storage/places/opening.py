"""From what a user gives (a path or a URL) to a place."""

import os

from clew.base.urls import UrlPath, as_path
from clew.storage.places.folder import FolderPlace
from clew.storage.places.place import Place


def open_place(where: str | os.PathLike[str]) -> Place:
    """The place at a path or URL (`s3://bucket/prefix`, `gs://`, `az://`, `file://`). Nothing is
    read yet. Raises InputError if it is no such URL, or obstore is not installed."""
    path = as_path(where)
    if not isinstance(path, UrlPath):
        return FolderPlace(path)
    from clew.storage.places.objects import ObjectPlace  # obstore is optional

    return ObjectPlace(str(path))
