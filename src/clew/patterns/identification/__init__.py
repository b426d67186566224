"""What photos show: a folder of them with lists, a page and contact sheets; or one, from near
and far. Here stands what reads results, without torch: it comes with `run` and `recognize`."""

from clew.patterns.identification.files import default_folder
from clew.patterns.identification.results import (
    Identification,
    Identified,
    find_newest,
    read_identified,
)

__all__ = [
    "Identification",
    "Identified",
    "default_folder",
    "find_newest",
    "read_identified",
]
