"""Compare all methods on the same samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from clew.base.commands import Cached, Hardware, Watched, select, takes
from clew.base.progress import Reporter, log_event
from clew.base.texts import split_names
from clew.base.urls import local_path
from clew.storage.run_file import NeverFromFile, UrlNeverFromFile, repeatable

if TYPE_CHECKING:
    from clew.cluster import Spread
    from clew.hallucination.comparison import CompareConfig, ComparisonResult


@dataclass(frozen=True, kw_only=True)
class CompareSettings(Hardware, Cached, Watched):
    """What `compare` takes.

    Args:
        preprocessed_dir: Folder of samples that "clew preprocess" wrote, or its URL. [default:
            preprocessed_data]
        out: Folder for the table, the scores, the networks and the report.
        methods: Methods to compare, such as "perplexity,linear_probe,lstm". [default: all, except
            those of other packages]
        seeds: Number of seeds for methods with randomness.
        overwrite: Rerun the selected methods instead of resuming.
        keep_detectors: Keep the best method on validation as a detector in OUT/detector, keep all
            methods that read the model in OUT/detectors/METHOD as well, or none.
        train_on: Folders of samples to train and select on.
        test_on: Folders of samples to evaluate on. One that is not trained on is evaluated on all
            of its answers.
        stores: Folders of samples, one per question set: evaluate each with detectors that were
            trained on the others.
        name: Names of the question sets, in the order of the folders, such as "facts,trivia".
            [default: those under which they were captured]
        by_set: Do the same with the question sets in one folder, such as all built-in ones that
            were captured together: the part of the question IDs before the slash names the set.
        pairs: With several sets, also train on each alone and evaluate it on each.
        folds: Evaluate every answer once, in this many folds by question, for small sets; 0
            evaluates the test split.
        epochs: Maximum number of epochs.
        patience: Stop after this many epochs without a better validation AUROC; 0 disables early
            stopping.
        cluster: Fit several methods at once on Ray: ray (the cluster of RAY_ADDRESS, one that runs
            here, or a new one on this machine) or ray://host:port. Requires "clew[ray]".
        workers: Number of workers on the cluster. [default: one per GPU or core]
    """

    preprocessed_dir: str | Path | None = None
    out: Annotated[str | Path, UrlNeverFromFile] = "comparison"
    methods: str | Sequence[str] | None = None
    seeds: int = 5
    overwrite: bool = False
    keep_detectors: Literal["best", "all", "none"] = "best"
    train_on: Sequence[str | Path] = ()
    test_on: Sequence[str | Path] = ()
    stores: Sequence[str | Path] = ()
    name: str | Sequence[str] | None = None
    by_set: bool = False
    pairs: bool = True
    folds: int = 0
    epochs: int = 50
    patience: int = 10
    cluster: Annotated[str | None, NeverFromFile] = None
    workers: int | None = None


@repeatable(
    "compare",
    always=("preprocessed_dir", "out"),
    unrecorded=("overwrite", "keep_detectors", "cluster", "workers", "threads"),
)
@takes(CompareSettings)
def compare(given: CompareSettings) -> "ComparisonResult":
    """Compare all detection methods on the same split; write a report and a table with confidence
    intervals.

    The layer, the threshold and the best method are selected on validation answers; test answers
    are used only for the final evaluation. Run the same command again to resume a comparison
    that was stopped or killed.

    Returns:
        The comparison: `table` (one row per method), `best` (the name of the best method) and
        `report` (the path of the page). Notebooks display it as a table.

    Raises:
        InputError: The samples or a setting cannot be used.
        SettingsMismatchError: The folder holds a comparison with different settings.
        StoreError: A folder is incomplete or damaged, or another run is writing into it.
        StoppedError: `should_stop` returned True; everything so far is saved.

    Examples:
        >>> comparison = clew.compare(preprocessed_dir="preprocessed_data")
        >>> comparison.to_pandas()
    """
    from clew.base.cpu import watch_cores
    from clew.engine import PlanRequest, TrainConfig
    from clew.hallucination.comparison import CompareConfig, choose_folders
    from clew.hallucination.samples.index import open_samples
    from clew.hallucination.workflow.spreading import choose_spread

    open_cached = partial(open_samples, cache_dir=given.cache_dir, cache_size=given.cache_size)
    samples = given.preprocessed_dir
    fit_on, measure_on = choose_folders(
        preprocessed_dir=None if samples is None else open_cached(samples),
        train_on=[open_cached(folder) for folder in given.train_on],
        test_on=[open_cached(folder) for folder in given.test_on],
        stores=[open_cached(folder) for folder in given.stores],
    )
    config = select(
        CompareConfig,
        given,
        train_on=fit_on,
        test_on=measure_on,
        out=local_path(given.out),
        methods=None if given.methods is None else split_names(given.methods),
        train=select(TrainConfig, given, patience=given.patience or None),
        request=select(PlanRequest, given),
        names=_split(given.name),
    )
    where = choose_spread(given.cluster, given.workers, threads=given.threads, device=given.device)
    report = watch_cores(given.reporter or log_event, given.device)
    return run_comparison(config, report, given.should_stop, where)


def _split(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names as they are written, unlike those of methods."""
    parts = (names or "").split(",") if isinstance(names, str | None) else names
    return tuple(stripped for part in parts if (stripped := part.strip()))


def run_comparison(
    config: "CompareConfig",
    reporter: Reporter | None,
    should_stop: Callable[[], bool],
    where: "Spread | None" = None,
) -> "ComparisonResult":
    """Compare, and write the report with a page per mistake that it lists."""
    from clew.hallucination.answer_page.run import show_mistakes
    from clew.hallucination.comparison import compare_methods
    from clew.hallucination.comparison.report import write_report

    comparison = compare_methods(config, reporter, should_stop, where)
    show_mistakes(config.out, config.test_on[0], reporter)
    write_report(config.out)
    return comparison
