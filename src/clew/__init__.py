"""Detect LLM hallucinations from hidden states and attention.

Each step is one function and one command of the same name:

    traces = clew.extract(questions="facts", num_samples=200, out="traces_data")
    clew.label("traces_data", out="ground_truth_scores.csv")
    clew.preprocess("traces_data", scores_file="ground_truth_scores.csv")
    comparison = clew.compare(preprocessed_dir="preprocessed_data")

`clew.datasets` provides the samples as PyTorch datasets, `clew.engine` trains any model, and
`clew.patterns` is for image classifiers. Names are imported when they are first used: `import clew`
loads nothing heavy.
"""

from clew.base.lazy import lazy_names
from clew.version import __version__

TYPE_CHECKING = False  # as in typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from clew.base.errors import (
        ClewError,
        DiskFullError,
        InputError,
        OtherVersionError,
        SettingsMismatchError,
        StoppedError,
        StoreError,
        StoreLockedError,
        TrainingError,
        TrainingStoppedError,
    )
    from clew.hallucination.comparison import ComparisonResult
    from clew.hallucination.detectors import (
        DetectionMethod,
        Detector,
        load_detector,
        register_method,
    )
    from clew.hallucination.grounded import load_reader
    from clew.hallucination.traces import (
        Trace,
        TraceBatchLoader,
        extract_batch_subset,
        merge_batches,
    )
    from clew.hallucination.workflow import (
        adapt,
        ask,
        calibrate,
        check,
        compare,
        convert,
        extract,
        inspect,
        label,
        load_model,
        plan,
        preprocess,
        push,
        score,
        scorer,
        serve,
        show,
        train,
        verify,
    )

__all__ = [
    "ClewError",
    "ComparisonResult",
    "DetectionMethod",
    "Detector",
    "DiskFullError",
    "InputError",
    "OtherVersionError",
    "SettingsMismatchError",
    "StoppedError",
    "StoreError",
    "StoreLockedError",
    "Trace",
    "TraceBatchLoader",
    "TrainingError",
    "TrainingStoppedError",
    "__version__",
    "adapt",
    "ask",
    "calibrate",
    "check",
    "compare",
    "convert",
    "extract",
    "extract_batch_subset",
    "inspect",
    "label",
    "load_detector",
    "load_model",
    "load_reader",
    "merge_batches",
    "plan",
    "preprocess",
    "push",
    "register_method",
    "score",
    "scorer",
    "serve",
    "show",
    "train",
    "verify",
]
_HOMES = {
    **dict.fromkeys(
        (
            *("ClewError", "DiskFullError", "InputError", "OtherVersionError"),
            *("SettingsMismatchError", "StoppedError", "StoreError", "StoreLockedError"),
            *("TrainingError", "TrainingStoppedError"),
        ),
        "base.errors",
    ),
    **dict.fromkeys(
        ("Trace", "TraceBatchLoader", "extract_batch_subset", "merge_batches"),
        "hallucination.traces",
    ),
    **dict.fromkeys(
        ("DetectionMethod", "Detector", "load_detector", "register_method"),
        "hallucination.detectors",
    ),
    "ComparisonResult": "hallucination.comparison",
    "load_reader": "hallucination.grounded",
    **dict.fromkeys(
        (
            *("adapt", "ask", "calibrate", "check", "compare", "convert", "extract"),
            *("inspect", "label", "load_model", "plan"),
            *("preprocess", "push", "score", "scorer", "serve", "show", "train", "verify"),
        ),
        "hallucination.workflow",
    ),
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
