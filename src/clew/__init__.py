"""clew follows the thread that runs through a language model's layers while it answers."""

from clew.errors import ClewError
from clew.hallucination.traces import Trace, TraceBatchLoader, extract_batch_subset, merge_batches
from clew.version import __version__

__all__ = [
    "ClewError",
    "Trace",
    "TraceBatchLoader",
    "__version__",
    "extract_batch_subset",
    "merge_batches",
]
