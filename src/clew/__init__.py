"""clew follows the thread that runs through a language model's layers while it answers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clew.errors import ClewError
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
        "clew.hallucination.traces",
    ),
    "load_detector": "clew.hallucination.detectors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
