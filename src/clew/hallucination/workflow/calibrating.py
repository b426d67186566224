"""Calibrate a detector on one's own labeled answers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from clew.base.commands import takes
from clew.base.errors import InputError
from clew.base.texts import counted
from clew.base.urls import as_path, local_path
from clew.storage.run_file import UrlNeverFromFile

if TYPE_CHECKING:
    from clew.hallucination.detectors import Detector
    from clew.hallucination.detectors.calibration import LabeledRisks

# Files have six decimals.
_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True, repr=False)
class CalibrationResult:
    """A calibrated detector in `path`. ECE is the expected calibration error over 15 bins, as in a
    comparison; `ece_after` is measured on answers that were not used for the fit. `excluded`
    answers had no label, or could not be checked. `false_positive_rate`, `recall` and `precision`
    are those of the new threshold on the answers that it was chosen on."""

    path: Path
    answers: int
    out_of_distribution: int
    excluded: int
    ece_before: float
    ece_after: float
    threshold_before: float
    threshold_after: float
    false_positive_rate: float
    recall: float
    precision: float | None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}

    @property
    def detector(self) -> "Detector":
        from clew.hallucination.detectors import load_detector

        return load_detector(self.path)

    def __repr__(self) -> str:
        return (
            f"CalibrationResult({counted(self.answers, 'answer')}: ECE {self.ece_before:.3f} -> "
            f"{self.ece_after:.3f}, threshold {self.threshold_before:.3f} -> "
            f"{self.threshold_after:.3f}; {self.path})"
        )


@dataclass(frozen=True, kw_only=True)
class CalibrateSettings:
    """What `calibrate` takes.

    Args:
        detector: Folder of a detector that "clew compare" or "clew train" kept.
        risks: A file that "clew score" wrote with this detector, for answers with labels.
        samples: Folder of samples that "clew preprocess" wrote, with the detector's model.
        target_fpr: Choose the threshold so that at most this share of correct answers gets a high
            risk, such as 0.05. [default: the threshold with the highest F1]
        out: Folder for the calibrated detector. [default: change it in place]
        overwrite: Replace a detector that is in `out` already.
    """

    detector: str | Path = field(kw_only=False)
    risks: str | Path | None = None
    samples: str | Path | None = None
    target_fpr: float | None = None
    out: Annotated[str | Path | None, UrlNeverFromFile] = None
    overwrite: bool = False


@takes(CalibrateSettings)
def calibrate(given: CalibrateSettings) -> CalibrationResult:
    """Fit a detector's calibration and threshold to your own labeled answers.

    How often a model hallucinates differs from one use to another, so a risk that was calibrated on
    one question set may be too high or too low on yours. The order of the risks does not change.
    Label a hundred answers or more, which the detector was not fitted on.

    Returns:
        The calibration error and the threshold before and after; `detector` loads the result.

    Raises:
        InputError: There are too few labeled answers, or they are not this detector's.
        StoreError: The detector or the samples are damaged.

    Examples:
        >>> clew.score(questions="mine.jsonl", detector="comparison/detector", out="mine.arrow")
        >>> clew.calibrate("comparison/detector", risks="mine.arrow", target_fpr=0.05, out="mine")
    """
    from clew.hallucination.detectors.calibration import refit
    from clew.hallucination.detectors.detector_folder import change_detector

    share = given.target_fpr
    if share is not None and not 0 < share < 1:
        raise InputError(
            "give a share between 0 and 1, such as 0.05.", setting="target_fpr", value=share
        )
    folder, loaded = read_kept(given.detector)
    target = choose_out(folder, given.out, overwrite=given.overwrite)
    found = refit(loaded, _read_answers(loaded, given), share)
    place = change_detector(folder, found, target)
    return CalibrationResult(path=place, **found.kept.calibrated)


def read_kept(detector: str | Path) -> tuple[Path, "Detector"]:
    """The folder of a kept detector, and the detector. Raises InputError for anything else."""
    from clew.hallucination.detectors.detector_folder import find_folder, read_detector

    folder = find_folder(Path(detector))
    if folder is None:
        raise InputError(
            'there is no detector.json. Give a folder "detector" that "clew compare" or "clew '
            'train" wrote.',
            setting="detector",
            value=detector,
        )
    return folder, read_detector(folder)


def _read_answers(detector: "Detector", given: CalibrateSettings) -> "LabeledRisks":
    from clew.hallucination.detectors.calibration import assess_samples
    from clew.hallucination.samples.answers import AnswerFeatures

    if given.samples is not None and given.risks is None:
        return assess_samples(detector, AnswerFeatures(as_path(given.samples)))
    if given.risks is None or given.samples is not None:
        raise InputError("give either `risks` or `samples`: the labeled answers to calibrate on.")
    return _read_risks(detector, Path(given.risks))


def _read_risks(detector: "Detector", path: Path) -> "LabeledRisks":
    import numpy as np

    from clew.hallucination.detectors.calibration import LabeledRisks
    from clew.hallucination.live.risk_file import read_columns, read_settings
    from clew.storage.arrow import ARROW_ERRORS

    try:
        names = ("risk", "hallucinated", "state", "method", "threshold", "token_probability_risk")
        rows = read_columns(path, names).to_pylist()
        settings = read_settings(path)
    except (*ARROW_ERRORS, KeyError, TypeError) as error:
        raise InputError(
            f'it is not a file of risks ({str(error).splitlines()[0]:.200}). Write one with "clew '
            'score".',
            setting="risks",
            value=path,
        ) from None
    _refuse_other_methods(detector, path, rows)
    _refuse_other_calibration(detector, path, rows, settings)
    for row in rows:
        # In a file of an earlier version, an unfamiliar answer has it as its risk.
        row["value"] = row["token_probability_risk"] if row["risk"] is None else row["risk"]
    kept = [r for r in rows if r["value"] is not None and r["hallucinated"] is not None]
    return LabeledRisks(
        risks=np.array([row["value"] for row in kept], float),
        labels=np.array([row["hallucinated"] for row in kept], np.int8),
        is_far=np.array([row["state"] == "out_of_distribution" for row in kept], bool),
        excluded=len(rows) - len(kept),
    )


def _refuse_other_methods(
    detector: "Detector", path: Path, rows: Sequence[Mapping[str, Any]]
) -> None:
    own = {detector.name, detector.fallback.scorer.statistic if detector.fallback else ""}
    others = {row["method"] for row in rows} - own
    if others:
        raise InputError(
            f"its risks come from {sorted(map(str, others))[0]}, not from {detector.name}: score "
            "the answers with this detector.",
            setting="risks",
            value=path,
        )


def _refuse_other_calibration(
    detector: "Detector",
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any] | None,
) -> None:
    """The fit starts from the calibration that the risks have. The file's summary says which one
    that is; without a summary, the thresholds in its rows tell them apart."""
    from clew.base.settings import find_differences
    from clew.hallucination.workflow.scoring import describe_detector

    if settings is None:
        before, now = _find_thresholds(detector, rows)
    else:
        before, now = dict(settings), describe_detector(detector)
    different = find_differences(before, now)
    if different:
        lines = (f"{d.name}: {d.before!r:.200}, not {d.now!r:.200}" for d in different)
        raise InputError(
            f"its risks come from another detector, or from {detector.name} before it was "
            "calibrated:\n  "
            + "\n  ".join(lines)
            + "\nScore the answers again with this detector.",
            setting="risks",
            value=path,
        )


def _find_thresholds(
    detector: "Detector", rows: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A threshold in the rows and the detector's, which differ if any do."""
    fallback = detector.fallback.threshold if detector.fallback else None
    for row in rows:
        own = fallback if row["state"] == "out_of_distribution" else detector.threshold
        found = row["threshold"]
        is_same = None not in (found, own) and abs(found - own) <= _ROUNDING
        if row["risk"] is not None and not is_same:
            return {"threshold": found}, {"threshold": own}
    return {}, {}


def choose_out(folder: Path, out: str | Path | None, *, overwrite: bool) -> Path | None:
    from clew.storage.ownership import is_interrupted

    if out is None or local_path(out).resolve() == folder.resolve():
        return None
    path = local_path(out)
    is_there = (path / "detector.json").exists()
    if path.is_file() or (path.is_dir() and not is_there and not is_interrupted(path)):
        raise InputError("something else is there. Choose a new folder.", setting="out", value=path)
    if is_there and not overwrite:
        raise InputError(
            "a detector is there already. Choose a new folder, or replace it with "
            "`overwrite=True`.",
            setting="out",
            value=path,
        )
    return path
