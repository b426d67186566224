"""Keep what a comparison fitted as detectors: folders that are copied, loaded and used live."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from clew.errors import InputError
from clew.hallucination.comparison.config import CompareConfig
from clew.hallucination.comparison.known_answers import gather_known
from clew.hallucination.comparison.methods import AnyMethod
from clew.hallucination.comparison.rows import Measured, pick_best, pick_median
from clew.hallucination.comparison.saved import SeedScores
from clew.hallucination.comparison.trial import Trial, TrialResult
from clew.hallucination.comparison.writing import main_pair
from clew.hallucination.detectors.kept import save_detector
from clew.hallucination.detectors.known import write_known
from clew.hallucination.detectors.loading import KEPT, load_detector
from clew.hallucination.detectors.making import FittedMethod, make_detector
from clew.hallucination.detectors.probes.kinds import can_be_kept
from clew.metrics import auroc
from clew.progress import Note, Reporter

_EVERY = "detectors"
# Entries of a row that are about other methods or layers.
_NOT_KEPT = ("by_layer", "versus_best", "versus_perplexity")


def save_scorer(trial: Trial, method: AnyMethod, seeds: Sequence[SeedScores]) -> None:
    """Save the scorer of the seed with the median validation AUROC, the one that is measured. A
    network is in its own folder already."""
    labels = trial.train.data.labels["validation"]
    middle = pick_median([auroc(labels, seed.validation) for seed in seeds])
    scorer = seeds[middle].scorer
    if scorer is not None and can_be_kept(scorer):
        trial.saved.keep_scorer(method.name, scorer)


def keep_detectors(
    config: CompareConfig, results: Sequence[TrialResult], reporter: Reporter
) -> dict[str, str]:
    """Write the folders of the detectors, fitted on the first store: the best on validation among
    the methods that read the model, or all. Returns the folders by method."""
    if config.keep_detectors == "none":
        return {}
    trial, _, measured = main_pair(results)
    chosen = [one for one in measured if one.row["family"] != "baseline"]
    if not chosen:
        return {}
    best = pick_best(chosen)
    kept = {}
    for one in chosen if config.keep_detectors == "all" else [best]:
        for folder in _folders(config, one, is_best=one is best):
            if _keep(trial, one, config.out / folder, reporter):
                kept[one.row["method"]] = folder
    if KEPT in kept.values():
        _keep_known(trial, config.out / KEPT)
    return kept


def _folders(config: CompareConfig, one: Measured, *, is_best: bool) -> Iterator[str]:
    if config.keep_detectors == "all":
        yield f"{_EVERY}/{one.row['method']}"
    if is_best:
        yield KEPT


def _keep(trial: Trial, one: Measured, folder: Path, reporter: Reporter) -> bool:
    """Whether the detector was written; a note says why not."""
    try:
        save_detector(make_detector(_collect(trial, one), trial.train.data), folder)
    except InputError as error:
        reporter(Note(f"{one.row['title']} is not kept as a detector: {error}"))
        return False
    return True


def _keep_known(trial: Trial, folder: Path) -> None:
    """The answers beside which new ones are shown."""
    known = gather_known(trial.train.data)
    if known is not None:
        write_known(folder, known)


def _collect(trial: Trial, one: Measured) -> FittedMethod:
    row = {name: value for name, value in one.row.items() if name not in _NOT_KEPT}
    name = row["method"]
    about = {name: row[name] for name in ("title", "family", "threshold")}
    if row["family"] == "network":
        seed = trial.seeds[one.place]
        found = load_detector(trial.networks_folder / name / f"seed-{seed}")
        fitted = {"network": found.network, "config": found.config}
    else:
        scorer = trial.saved.find_scorer(name)
        if scorer is None:
            raise InputError(
                "its results come from an earlier version of clew, which did not save what it "
                "fitted: run this method again with `overwrite=True`"
            )
        fitted = {"scorer": scorer}
    return FittedMethod(name=name, calibration=one.calibration, results=row, **about, **fitted)
