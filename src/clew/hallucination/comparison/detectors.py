"""Keep what a comparison fitted as detectors: folders that are copied, loaded and used live."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from clew.base.errors import InputError, StoreError
from clew.base.progress import Note, Reporter
from clew.hallucination.comparison.evaluation import Evaluation, describe_pooled, pick_best
from clew.hallucination.comparison.settings import KeepDetectors
from clew.hallucination.comparison.trial import Measured, Trial, TrialResult, explain_failure
from clew.hallucination.detectors.calibration import (
    MORE_ANSWERS,
    Companions,
    make_detector,
    measure_chance,
)
from clew.hallucination.detectors.detector import Detector
from clew.hallucination.detectors.detector_folder import (
    load_detector,
    read_detector,
    remove_detector,
    save_detector,
)
from clew.hallucination.detectors.folder import DETECTOR_JSON, KEPT
from clew.hallucination.detectors.probes.own import OwnMethod
from clew.hallucination.detectors.probes.registry import find_own_methods
from clew.hallucination.detectors.similar_answers import gather_known
from clew.hallucination.samples.mixed import number_groups

_EVERY = "detectors"
# Entries of a row that are about other methods or layers.
_NOT_KEPT = ("by_layer", "versus_best", "versus_perplexity")
_UNSAVED = (
    "its clew.DetectionMethod does not say how to save it: give the class of what fit returns as "
    "scorer"
)
_EARLIER = (
    "its results come from an earlier version of clew, which did not save what it fitted: run this "
    "method again with `overwrite=True`"
)


def names_to_keep(keep: KeepDetectors, measured: Sequence[Measured]) -> dict[str, str]:
    """The methods to keep as detectors, by folder: the best on validation among those that read the
    model and can be saved in `detector`, and with `keep_detectors="all"` each in a folder of its
    own."""
    chosen = [one for one in measured if one.row["family"] != "baseline"]
    if not chosen or keep == "none":
        return {}
    unsaved = _find_unsaved(chosen)
    best = pick_best([one for one in chosen if one.row["method"] not in unsaved] or chosen)
    kept = {KEPT: best.row["method"]}
    if keep == "all":
        names = [one.row["method"] for one in chosen]
        kept |= {f"{_EVERY}/{name}": name for name in names}
    return kept


def _find_unsaved(measured: Sequence[Measured]) -> set[str]:
    """The methods that do not say how they are saved, as all of clew do."""
    found = find_own_methods([one.row["method"] for one in measured]).values()
    own = [one for one in found if isinstance(one, OwnMethod)]
    return {one.name for one in own if one.given.scorer is None}


def keep_detectors(
    evaluation: Evaluation, result: TrialResult, names: Mapping[str, str], reporter: Reporter
) -> tuple[dict[str, str], str | None]:
    """Write the folders of the detectors that `result` fitted; `names` are the methods by folder.
    Returns the folders by method, and a sentence about those that may be guessing: they are kept
    only on request. Other folders lose the detector that an earlier comparison left there, unless
    it was calibrated since."""
    writer = _DetectorWriter(trial=result.trial, reporter=reporter)
    if [*names] == [KEPT]:  # of several, each is tried and says so itself
        chosen = [one for one in evaluation.measured if one.row["family"] != "baseline"]
        best = pick_best(chosen).row
        if best["method"] in _find_unsaved(chosen):
            reporter(Note(f"{best['title']} is not kept as a detector: {_UNSAVED}"))
    [rows, *_] = [rows for rows in result.measured.values() if rows] or [[]]
    fitted = {one.row["method"]: one for one in rows}
    beside, keeps_all = describe_pooled(evaluation), result.trial.config.keep_at_chance
    chance = {name: _measure_chance(evaluation, result.trial, one) for name, one in fitted.items()}
    guessing = {name: found["at_chance"] for name, found in chance.items() if found["at_chance"]}
    told = [
        (fitted[name].row["title"], guessing[name]) for name in names.values() if name in guessing
    ]
    folders = {
        name: folder
        for folder, name in sorted(names.items(), reverse=True)
        if name in fitted
        and (keeps_all or name not in guessing)
        and writer.write(fitted[name], folder, {**chance[name], **beside.get(name, {})})
    }
    methods = [one.row["method"] for one in evaluation.measured]
    methods += [one.method for one in evaluation.excluded]
    written = {folder for folder, name in names.items() if name in folders}
    for folder in {KEPT, *(f"{_EVERY}/{name}" for name in methods)} - written:
        writer.remove(folder)
    return folders, _tell_chance(dict(told), is_kept=keeps_all, is_alone=[*names] == [KEPT])


def _measure_chance(evaluation: Evaluation, trial: Trial, one: Measured) -> dict[str, Any]:
    """On validation answers; of folds, on all answers, each by a detector without it, and without
    the interval, which belongs to those detectors."""
    if evaluation.plan.kind == "folds":
        tested = {row.row["method"]: row for row in evaluation.measured}
        every, scores = evaluation.labels.test, tested[one.row["method"]].test_scores
        found = measure_chance(every, every, scores, evaluation.labels.clusters)
        return {"at_chance": found["at_chance"]}
    data, scores = trial.train.data, one.validation_probabilities
    clusters = number_groups(data, "validation")
    return measure_chance(data.labels["train"], data.labels["validation"], scores, clusters)


def _tell_chance(reasons: Mapping[str, str], *, is_kept: bool, is_alone: bool) -> str | None:
    """`reasons` by the title of the method, the best first."""
    if not reasons:
        return None
    [first, *others] = reasons
    why = f"not shown to be better than chance ({reasons[first]})"
    rest = f", and neither are {', '.join(others)}" if others else ""
    if is_kept:
        return f"{first} was kept as a detector on request, but is {why}{rest}."
    if is_alone:
        return f"No detector was kept: {first} is {why}. {MORE_ANSWERS}."
    return f"{first} was not kept as a detector, since it is {why}{rest}. {MORE_ANSWERS}."


@dataclass(frozen=True, kw_only=True)
class _DetectorWriter:
    """Writes detectors, with what is fitted besides the methods once for all of them."""

    trial: Trial
    reporter: Reporter

    def write(self, one: Measured, folder: str, beside: Mapping[str, Any]) -> bool:
        """Whether the folder has the method's detector; a note says why not. A comparison that is
        finished does not fail here. `beside` are further results to keep with it."""
        name, title = one.row["method"], one.row["title"]
        place = self.trial.config.out / folder
        calibrated = self._find_calibrated(place)
        if calibrated is not None:
            self.reporter(
                Note(
                    f'the detector {calibrated.name} in "{place}" was calibrated and stays as it '
                    "is: start over with `overwrite=True` to replace it"
                )
            )
            traces = self.trial.train.data.identity.get("sha256")
            return calibrated.name == name and calibrated.kept.data.get("traces") == traces
        try:
            # The answers beside which new ones are shown.
            known = gather_known(self.trial.train.data) if folder == KEPT else None
            detector = make_detector(_collect(self.trial, one, beside), self._companions)
            save_detector(detector, place, known)
        except Exception as error:
            gone = explain_failure(name, title, error, folder=self.trial.saved.folder)
            self.reporter(Note(f"{title} is not kept as a detector: {gone.reason}"))
            return False
        return True

    def remove(self, folder: str) -> None:
        """Remove the detector of an earlier comparison."""
        place = self.trial.config.out / folder
        if self._find_calibrated(place) is None:
            remove_detector(place)

    @cached_property
    def _companions(self) -> Companions:
        return Companions.fit(self.trial.train.data)

    def _find_calibrated(self, folder: Path) -> Detector | None:
        """The detector in a folder, if it is one that must not be replaced."""
        if self.trial.config.overwrite or not (folder / DETECTOR_JSON).exists():
            return None
        try:
            found = read_detector(folder)
        except StoreError:
            return None
        return found if found.kept.calibrated else None


def _collect(trial: Trial, one: Measured, beside: Mapping[str, Any]) -> Detector:
    row = {name: value for name, value in one.row.items() if name not in _NOT_KEPT} | {**beside}
    name = row["method"]
    about = {name: row[name] for name in ("title", "family", "threshold")}
    if row["family"] == "network":
        seed = trial.config.seed_numbers[one.place]
        found = load_detector(trial.networks_folder / name / f"seed-{seed}")
        fitted = {"network": found.network, "config": found.config}
    else:
        scorer = trial.saved.find_scorer(name)
        if scorer is None:
            is_own = isinstance(find_own_methods([name]).get(name), OwnMethod)
            raise InputError(_UNSAVED if is_own else _EARLIER)
        fitted = {"scorer": scorer}
    return Detector(name=name, calibration=one.calibration, metrics=row, **about, **fitted)
