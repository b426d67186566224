"""What photos show: a folder of them with lists, a page and contact sheets; or one, from near
and far."""

from clew.patterns.identify.config import IdentifyConfig
from clew.patterns.identify.files import default_folder
from clew.patterns.identify.recognize import Recognition, Surest, recognize_photo
from clew.patterns.identify.reporter import IdentifyReporter
from clew.patterns.identify.results import (
    Identification,
    Identified,
    find_newest,
    read_identified,
)
from clew.patterns.identify.run import IdentifyResult, identify_photos
from clew.patterns.identify.views import Box

__all__ = [
    "Box",
    "Identification",
    "Identified",
    "IdentifyConfig",
    "IdentifyReporter",
    "IdentifyResult",
    "Recognition",
    "Surest",
    "default_folder",
    "find_newest",
    "identify_photos",
    "read_identified",
    "recognize_photo",
]
