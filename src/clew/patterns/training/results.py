"""results.json: what a model reached, and how it was made."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clew.engine import FitResult
from clew.engine.versions import read_versions
from clew.patterns.trained.model import RESULTS
from clew.patterns.training.measures import Measures
from clew.storage.writing import replace_file

# What photos are read with, besides what every training stands on.
_LIBRARY = "pillow"


def describe_test(measures: Measures) -> dict[str, Any]:
    """The figures of a test or an evaluation, by their names in results.json."""
    return {
        "test_accuracy": measures.accuracy,
        "test_accuracy_ci": list(measures.interval),
        "test_macro_f1": measures.macro_f1,
        "test_loss": measures.loss,
        "test_ece": measures.calibration_error,
        "test_photos": measures.photos,
    }


def describe_classes(
    classes: Sequence[str], measures: Measures, counts: Mapping[str, Sequence[int]]
) -> list[dict[str, Any]]:
    """A row a class; `counts` are its photos, by split."""
    return [
        {
            "class": name,
            **measures.describe_class(place),
            **{split: of[place] for split, of in counts.items()},
        }
        for place, name in enumerate(classes)
    ]


def describe_fit(fitted: FitResult) -> dict[str, Any]:
    return {
        "best_epoch": fitted.best_epoch,
        "epochs_run": len(fitted.history),
        "seconds": fitted.seconds,
        "images_per_second": fitted.samples_per_second,
        "data_wait_share": fitted.data_wait_share,
        "peak_memory_bytes": fitted.peak_memory_bytes,
        "parameters": fitted.parameters,
        "plan": fitted.plan.to_dict(),
    }


def describe_versions() -> dict[str, str]:
    return read_versions(_LIBRARY)


def write_results(folder: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """Gives them as they are read back: there are no tuples in JSON."""
    text = json.dumps(results, indent=1, ensure_ascii=False)
    # The name of a folder need not be text.
    replace_file(folder / RESULTS, f"{text}\n".encode("utf-8", "backslashreplace"))
    return json.loads(text)
