"""Calibrate a detector on one's own labeled answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from clew.base.commands import takes
from clew.base.errors import InputError
from clew.base.progress import Reporter, ignore_event, log_event
from clew.base.settings import check_exists, check_folders, check_writable
from clew.base.texts import counted
from clew.base.urls import as_path, local_path
from clew.hallucination.grounded import BUILT_IN_READER, READER_JSON, is_reader
from clew.hallucination.hub import fetch_detector, refuse_change
from clew.hallucination.workflow.preparing import ModelPlacement, RowSettings, load_libraries
from clew.storage.run_file import UrlNeverFromFile

if TYPE_CHECKING:
    from clew.hallucination.detectors import Detector
    from clew.hallucination.detectors.calibration import LabeledRisks
    from clew.hallucination.detectors.data import Promise
    from clew.hallucination.detectors.promises import Refusal
    from clew.hallucination.grounded import Reader
    from clew.metrics.calibration import PlattScale

# Files have six decimals.
_ROUNDING = 1e-6
PROMISE_PAGE = "promise.html"


def load_kept(path: Path) -> "Detector | Reader":
    from clew.hallucination.detectors import load_detector
    from clew.hallucination.grounded import load_reader

    return load_reader(path) if is_reader(path) else load_detector(path)


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
    def detector(self) -> "Detector | Reader":
        return load_kept(self.path)

    def __repr__(self) -> str:
        return (
            f"CalibrationResult({counted(self.answers, 'answer')}: ECE {self.ece_before:.3f} -> "
            f"{self.ece_after:.3f}, threshold {self.threshold_before:.3f} -> "
            f"{self.threshold_after:.3f}; {self.path})"
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class PromiseResult:
    """What was promised, and is kept with the detector in `path`; or, with `promise` None, a
    `refusal`: the detector in `path` is then unchanged. `report` is the page with the curve, None
    if none was written."""

    path: Path
    promise: "Promise | None"
    refusal: "Refusal | None"
    report: Path | None

    @property
    def text(self) -> str:
        found = self.promise or self.refusal
        assert found is not None
        return found.text

    def as_dict(self) -> dict[str, Any]:
        report = None if self.report is None else str(self.report)
        return {**asdict(self), "path": str(self.path), "report": report, "text": self.text}

    @property
    def detector(self) -> "Detector | Reader":
        return load_kept(self.path)

    def __repr__(self) -> str:
        return f"PromiseResult({self.text}; {self.path})"


@dataclass(frozen=True, kw_only=True)
class CalibrateSettings(ModelPlacement, RowSettings):
    """What `calibrate` takes.

    Args:
        detector: Folder of a detector that "clew compare" or "clew train" kept; or ready, the one
            that comes with clew; or grounded, the built-in reader of answers with sources, or the
            folder of a reader.
        labeled: A file (.jsonl, .json, .csv, .tsv, .parquet, .arrow) of answers with labels or
            accepted answers, which are scored first.
        risks: A file that "clew score" wrote with this detector, for answers with labels.
        samples: Folder of samples that "clew preprocess" wrote, with the detector's model.
        target_fpr: Choose the threshold so that at most this share of correct answers gets a high
            risk, such as 0.05. [default: the threshold with the highest F1]
        max_wrong_shown: Promise that of the answers shown, those with a low risk, at most this
            share is wrong, such as 0.1. The threshold is chosen for it, and the calibration stays.
        confidence: Probability, over the draw of the labeled answers, with which the promise holds.
        report: Page to write with a promise: share shown against share wrong. [default:
            promise.html in the folder of the detector, if it can be promised]
        out: Folder for the calibrated detector. [default: change it in place]
        overwrite: Replace a detector that is in `out` already.
        model: The detector's model, if it is in another place now. [default: as in the detector]
        reporter: Called with progress events. [default: the log]
    """

    detector: str | Path = field(kw_only=False)
    labeled: str | Path | None = None
    risks: str | Path | None = None
    samples: str | Path | None = None
    target_fpr: float | None = None
    max_wrong_shown: float | None = None
    confidence: float = 0.95
    report: str | Path | None = None
    out: Annotated[str | Path | None, UrlNeverFromFile] = None
    overwrite: bool = False
    model: str | Path | None = None
    reporter: Reporter | None = None


@takes(CalibrateSettings)
def calibrate(given: CalibrateSettings) -> CalibrationResult | PromiseResult:
    """Fit a detector's calibration and threshold to your own labeled answers, or promise how many
    of the answers shown are wrong.

    How often a model hallucinates differs from one use to another, so a risk that was calibrated on
    one question set may be too high or too low on yours. The order of the risks does not change.
    Label a hundred answers or more, which the detector was not fitted on.

    With `max_wrong_shown`, the threshold is the highest for which the labels prove that at most
    this share of the answers shown is wrong. Answers that are not familiar or have no risk are not
    shown.

    Returns:
        The calibration error and the threshold before and after, or the promise, or why it cannot
        be made; `detector` loads the result.

    Raises:
        InputError: There are too few labeled answers, or they are not this detector's.
        StoreError: The detector or the samples are damaged.

    Examples:
        >>> clew.score(questions="mine.jsonl", detector="comparison/detector", out="mine.arrow")
        >>> clew.calibrate("comparison/detector", risks="mine.arrow", target_fpr=0.05, out="mine")
        >>> clew.calibrate("comparison/detector", labeled="mine.jsonl", max_wrong_shown=0.1)
    """
    share = given.target_fpr
    if share is not None and not 0 < share < 1:
        raise InputError(
            "give a share between 0 and 1, such as 0.05.", setting="target_fpr", value=share
        )
    if given.max_wrong_shown is None and given.report is not None:
        raise InputError("the report is that of a promise: give `max_wrong_shown`, too.")
    if share is not None and given.max_wrong_shown is not None:
        raise InputError("give either `target_fpr` or `max_wrong_shown`: both choose a threshold.")
    given = replace(given, detector=fetch_detector(given.detector, given.reporter))
    if given.out is None:
        refuse_change(Path(given.detector))
    if is_reader(given.detector):
        return _calibrate_reader(given)
    folder = find_kept(given.detector)
    target = choose_out(folder, given.out, overwrite=given.overwrite)
    _check_sources(given)
    load_libraries(given.reporter or log_event)
    from clew.hallucination.detectors.calibration import refit
    from clew.hallucination.detectors.detector_folder import change_detector, read_detector

    loaded = read_detector(folder)
    answers = _read_answers(loaded, given)
    if given.max_wrong_shown is not None:
        return _promise(folder, target, loaded, answers, given)
    found = refit(loaded, answers, share)
    place = change_detector(folder, found, target)
    return CalibrationResult(path=place, **found.kept.calibrated)


def find_kept(detector: str | Path) -> Path:
    """The folder of a kept detector. Raises InputError for anything else."""
    from clew.hallucination.detectors.folder import find_folder

    check_exists("detector", detector)
    folder = find_folder(Path(detector))
    if folder is None:
        raise InputError(
            'there is no detector.json. Give a folder "detector" that "clew compare" or "clew '
            'train" wrote.',
            setting="detector",
            value=detector,
        )
    return folder


def _check_sources(given: CalibrateSettings) -> None:
    """Raises InputError unless there is one source of labeled answers, and it can be read."""
    from clew.hallucination.workflow.scoring import describe_rows

    sources = (given.labeled, given.risks, given.samples)
    if sum(one is not None for one in sources) != 1:
        raise InputError(
            "give either `labeled`, `risks` or `samples`: the labeled answers to calibrate on."
        )
    check_exists("risks", given.risks)
    check_folders(given.samples)
    if given.labeled is not None:
        describe_rows(given.labeled, given.row_format, ignore_event)


def _calibrate_reader(given: CalibrateSettings) -> CalibrationResult | PromiseResult:
    from clew.hallucination.detectors.calibration import refit_scale
    from clew.hallucination.grounded.folder import reader_folder
    from clew.hallucination.grounded.reader import change_reader, read_settings

    folder = reader_folder(given.detector)
    target = folder if given.out is None else local_path(given.out)
    if given.labeled is None or given.risks or given.samples:
        raise InputError("a reader is calibrated on `labeled` answers: give a file with sources.")
    if given.out is None and str(given.detector) == BUILT_IN_READER:
        raise InputError("the built-in reader stays as it is: give a folder for yours with `out`.")
    if target != folder:
        refuse_reader(target, overwrite=given.overwrite)
    before, answers = read_settings(folder), _score_labeled(given.detector, given)
    if given.max_wrong_shown is None:
        found = refit_scale(before.calibration, before.threshold, answers, given.target_fpr)
        card = {**before.card, "calibrated": found.figures}
        after = replace(before, calibration=found.calibration, threshold=found.threshold, card=card)
        place = change_reader(given.detector, after, target)
        return CalibrationResult(path=place, **found.figures)

    def keep(promise: "Promise") -> Path:
        after = replace(before, threshold=promise.threshold, promise=promise)
        return change_reader(given.detector, after, target)

    return _make_promise(folder, before.calibration, answers, given, keep)


def _promise(
    folder: Path,
    target: Path | None,
    detector: "Detector",
    answers: "LabeledRisks",
    given: CalibrateSettings,
) -> PromiseResult:
    from clew.hallucination.detectors.detector_folder import change_detector
    from clew.hallucination.detectors.promises import keep_promise

    assert detector.calibration is not None

    def keep(promise: "Promise") -> Path:
        return change_detector(folder, keep_promise(detector, promise), target)

    return _make_promise(folder, detector.calibration, answers, given, keep)


def _make_promise(
    folder: Path,
    scale: "PlattScale",
    answers: "LabeledRisks",
    given: CalibrateSettings,
    keep: "Callable[[Promise], Path]",
) -> PromiseResult:
    from clew.hallucination.detectors.promises import Refusal, make_promise, write_promise_page

    assert given.max_wrong_shown is not None
    found = make_promise(
        scale, answers, max_wrong_shown=given.max_wrong_shown, confidence=given.confidence
    )
    page = None if given.report is None else local_path(given.report)
    if isinstance(found, Refusal):
        has_curve = page is not None and not answers.is_far.all()
        report = write_promise_page(page, answers, found) if page and has_curve else None
        return PromiseResult(path=folder, promise=None, refusal=found, report=report)
    place = keep(found)
    page = write_promise_page(page or place / PROMISE_PAGE, answers, found)
    return PromiseResult(path=place, promise=found, refusal=None, report=page)


def _read_answers(detector: "Detector", given: CalibrateSettings) -> "LabeledRisks":
    from clew.hallucination.detectors.calibration import assess_samples
    from clew.hallucination.samples.answers import AnswerFeatures

    if given.samples is not None:
        return assess_samples(detector, AnswerFeatures(as_path(given.samples)))
    if given.risks is not None:
        return _read_risks(detector, Path(given.risks))
    return _score_labeled(detector, given)


def _score_labeled(detector: "Detector | str | Path", given: CalibrateSettings) -> "LabeledRisks":
    from clew.hallucination.workflow.scoring import score

    assert given.labeled is not None
    found = score(
        questions=given.labeled,
        detector=detector,
        model=given.model,
        columns=given.columns,
        label_values=given.label_values,
        encoding=given.encoding,
        reporter=given.reporter,
        **given.placement,
    )
    return _collect(found.rows)


def _read_risks(detector: "Detector", path: Path) -> "LabeledRisks":
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
    return _collect(rows)


def _collect(rows: Sequence[Mapping[str, Any]]) -> "LabeledRisks":
    import numpy as np

    from clew.hallucination.detectors.calibration import LabeledRisks

    labeled = [row for row in rows if row["hallucinated"] is not None]
    # In a file of an earlier version, an unfamiliar answer has its fallback's as its risk.
    values = [r["token_probability_risk"] if r["risk"] is None else r["risk"] for r in labeled]
    kept = [(row, value) for row, value in zip(labeled, values, strict=True) if value is not None]
    return LabeledRisks(
        risks=np.array([value for _, value in kept], float),
        labels=np.array([row["hallucinated"] for row, _ in kept], np.int8),
        is_far=np.array([row["state"] == "out_of_distribution" for row, _ in kept], bool),
        excluded=len(rows) - len(kept),
        unchecked=len(labeled) - len(kept),
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


def refuse_reader(folder: Path, *, overwrite: bool) -> None:
    """Raises InputError if another reader would be replaced without `overwrite`."""
    if (folder / READER_JSON).exists() and not overwrite:
        raise InputError(
            "a reader is there already. Choose a new folder, or replace it with `overwrite=True`.",
            setting="out",
            value=folder,
        )


def choose_out(folder: Path, out: str | Path | None, *, overwrite: bool) -> Path | None:
    from clew.storage.ownership import is_interrupted

    if out is None or local_path(out).resolve() == folder.resolve():
        return None
    path = local_path(out)
    check_writable("out", path)
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
