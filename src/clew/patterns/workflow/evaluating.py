"""How accurate a trained classifier is on other photos."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clew.base.progress import Reporter, log_event
from clew.base.settings import as_path
from clew.patterns.library.folders import LIBRARY
from clew.patterns.workflow.training import write_page
from clew.storage.run_file import UrlNeverFromFile, repeatable

if TYPE_CHECKING:
    from clew.patterns.workflow.results import ClassifierResult


@repeatable("patterns evaluate", folder=lambda result: result.path)
def evaluate(
    data: str | Path,
    *,
    model: str | Path | None = None,
    name: str | None = None,
    out: Annotated[str | Path | None, UrlNeverFromFile] = None,
    device: str | None = None,
    num_workers: int | None = None,
    library: str | Path = LIBRARY,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> "ClassifierResult":
    """Evaluate a trained classifier on photos that it has not seen.

    Photos from its training and validation splits are recognized by content, regardless of file
    name, and excluded.

    Args:
        data: Folder with one subfolder per class.
        model: Folder or URL of a trained classifier.
        name: Name of a set; its newest model is used. [default: the only set]
        out: Folder or URL for the metrics and the report. [default: evaluated/DATA beside the
            model]
        device: cpu, cuda or cuda:1. [default: the GPU if there is one]
        num_workers: Number of threads that prefetch photos. [default: one per core]
        library: Folder that contains your sets.
        reporter: Called with progress events. [default: the log]
        should_stop: Called after every photo; when it returns True, the evaluation stops and
            nothing is written.

    Returns:
        The accuracy with its confidence interval, and a table with one row per class.

    Raises:
        InputError: The photos have classes that the classifier does not know, or there are none.
        TrainingStoppedError: `should_stop` returned True.

    Examples:
        >>> evaluate("other_photos", model="trained").accuracy
    """
    from clew.patterns.library.choose import choose_model
    from clew.patterns.training.evaluate import evaluate_patterns, usual_evaluation_folder
    from clew.patterns.workflow.results import ClassifierResult

    chosen = choose_model(name, model=as_path(model), library=Path(library))
    usual = usual_evaluation_folder(chosen.model, Path(data))
    folder = as_path(out) or usual
    reporter = reporter or log_event
    results = evaluate_patterns(
        chosen.model,
        Path(data),
        out=folder,
        device=device,
        workers=num_workers,
        reporter=reporter,
        should_stop=should_stop,
    )
    write_page(folder, reporter)
    return ClassifierResult(
        path=folder, model=chosen.model, raw=results, pattern_set=chosen.pattern_set
    )
