"""clew follows the thread that runs through a language model's layers while it answers."""

from typing import TYPE_CHECKING

from clew.errors import ClewError
from clew.lazy import lazy_names
from clew.version import __version__

if TYPE_CHECKING:
    from clew.hallucination.detectors import load_detector
    from clew.hallucination.traces import (
        Trace,
        TraceBatchLoader,
        extract_batch_subset,
        merge_batches,
    )

__all__ = [
    "ClewError",
    "Trace",
    "TraceBatchLoader",
    "__version__",
    "extract_batch_subset",
    "load_detector",
    "merge_batches",
]
# Imported when first asked for: `import clew` and `clew --help` load nothing heavy.
_HOMES = {
    **dict.fromkeys(
        ("Trace", "TraceBatchLoader", "extract_batch_subset", "merge_batches"),
        "hallucination.traces",
    ),
    "load_detector": "hallucination.detectors",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
