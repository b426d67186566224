"""Adapt a detector to one's own answers with few labels."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeGuard

from clew.base.commands import Watched, takes
from clew.base.errors import InputError, StoreError
from clew.base.progress import Note, Reporter, WorkStarted, log_event, report_work
from clew.base.texts import counted
from clew.base.urls import as_path, local_path
from clew.hallucination.grounded import is_reader
from clew.hallucination.hub import fetch_detector
from clew.hallucination.workflow.calibrating import (
    choose_out,
    find_kept,
    load_kept,
    refuse_reader,
)
from clew.hallucination.workflow.preparing import ModelPlacement, RowSettings, load_libraries
from clew.hallucination.workflow.scoring import describe_rows
from clew.storage.manifest import MANIFEST_NAME
from clew.storage.run_file import UrlNeverFromFile

if TYPE_CHECKING:
    import numpy as np

    from clew.hallucination.capture import LoadedModel
    from clew.hallucination.detectors import Detector
    from clew.hallucination.grounded import Reader
    from clew.hallucination.live.existing import ExistingAnswers

# What adaptation needs of an answer, None if it cannot be checked; and whether it is hallucinated.
ReadAnswer: TypeAlias = "tuple[np.ndarray | None, bool | None]"
_LEAST_LABELS = 20


@dataclass(frozen=True, kw_only=True, repr=False)
class AdaptResult:
    """An adapted detector in `path`. The figures are those of labeled answers that nothing was
    fitted on (cross-validation): AUROC before and after, what the labels bought (`gain`), each with
    its 95% interval, and the expected calibration error (ECE). They are None with fewer than two
    labels of a class. `kept_ranking` says why the answers are ranked as before, None if they are
    not. `excluded` answers could not be checked."""

    path: Path
    labels: int
    hallucinated: int
    unlabeled: int
    excluded: int
    kept_ranking: str | None
    threshold_before: float
    threshold_after: float
    auroc_before: float | None = None
    auroc_before_ci: Sequence[float] | None = None
    auroc_after: float | None = None
    auroc_after_ci: Sequence[float] | None = None
    gain: float | None = None
    gain_ci: Sequence[float] | None = None
    ece_before: float | None = None
    ece_after: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}

    @property
    def detector(self) -> "Detector | Reader":
        """The adapted detector, or the reader."""
        return load_kept(self.path)

    def __repr__(self) -> str:
        change = (
            f"AUROC {self.auroc_before:.3f} -> {self.auroc_after:.3f}"
            if self.kept_ranking is None
            else "the ranking is as before"
        )
        return f"AdaptResult({counted(self.labels, 'label')}: {change}; {self.path})"


@dataclass(frozen=True, kw_only=True)
class AdaptSettings(ModelPlacement, RowSettings, Watched):
    """What `adapt` takes.

    Args:
        detector: Folder of a detector that "clew compare", "clew train" or "clew adapt" wrote; or
            ready, the detector that comes with clew; or grounded, the built-in reader of answers
            with sources, or the folder of a reader.
        labeled: Your answers: a file (.jsonl, .json, .csv, .tsv, .parquet, .arrow) with the columns
            question, answer and label, optionally context; a Hugging Face dataset as
            name:config:split; a trace store; or a folder of samples of "clew preprocess". At least
            20 need a label; those without one count for their statistics.
        feedback: Use the labels that people gave to answers of "clew serve" with this detector,
            which are in its folder.
        feedback_file: A file of such labels in another place.
        unlabeled: More of your answers, whose labels are not used.
        out: Folder for the adapted detector.
        overwrite: Replace a detector that is in `out` already.
        model: The detector's model, if it is in another place now. For a reader, it may be another
            model: a new reader is then trained on it. [default: as in the detector]
        rows: Number of answers to pass at once. [default: 64 on a GPU, 16 on a CPU]
        dtype: auto, float32, float16 or bfloat16. auto is that of the detector's training answers.
        threads: CPU threads to use. [default: all cores, or fewer if that is faster while other
            processes use them]
        should_stop: Called between windows of 8 batches; when it returns True, the run stops.
    """

    detector: str | Path = field(kw_only=False)
    labeled: "str | Path | Sequence[Mapping[str, Any]] | Any" = None
    feedback: bool = False
    feedback_file: str | Path | None = None
    out: Annotated[str | Path, UrlNeverFromFile]
    unlabeled: "str | Path | Sequence[Mapping[str, Any]] | Any" = None
    overwrite: bool = False
    model: "str | Path | LoadedModel | None" = None
    rows: int | None = None
    threads: int | None = None


@takes(AdaptSettings)
def adapt(given: AdaptSettings) -> AdaptResult:
    """Adapt a detector that was trained elsewhere to your own answers, with few labels.

    A detector ranks answers to other questions than its own less well. From 20 labels on, this
    corrects its score by the model's states in your answers, and fits calibration, threshold and
    what counts as familiar to them. It says what the labels bought, and keeps the ranking if they
    are too few or would make it worse. Each answer passes through the model once.

    A reader is trained further instead, on three quarters of the documents, which the column
    "group" names; risks, threshold and figures come from the others. Label at least a hundred
    answers, with spans if you can.

    Returns:
        The figures before and after; `detector` loads the result, which is used like any other.

    Raises:
        InputError: There are too few labels, or the detector is for another model.
        StoreError: The detector or the samples are damaged.
        StoppedError: `should_stop` returned True.

    Examples:
        >>> result = clew.adapt("comparison/detector", labeled="answers.jsonl", out="adapted")
        >>> result.auroc_before, result.auroc_after
    """
    report = given.reporter or log_event
    given = replace(given, detector=fetch_detector(given.detector, report))
    if is_reader(given.detector):
        return _adapt_reader(given, report)
    folder = find_kept(given.detector)
    target = choose_out(folder, given.out, overwrite=given.overwrite)
    if target is None:
        raise InputError(
            "the detector itself is there. Choose a new folder.", setting="out", value=given.out
        )
    if given.labeled is None and not given.feedback and given.feedback_file is None:
        raise InputError("give labeled answers: `labeled`, or `feedback=True`.")
    for source in (given.labeled, given.unlabeled):
        if source is not None and not _is_samples(source):
            describe_rows(source, given.row_format, report)
    load_libraries(report, model=given.model)
    from clew.hallucination.detectors.detector_folder import read_detector

    detector = read_detector(folder)
    found = _read_answers(detector, given, report)
    import numpy as np

    from clew.hallucination.detectors.adaptation import UNLABELED
    from clew.hallucination.detectors.calibration import adapt_detector
    from clew.hallucination.detectors.detector_folder import save_detector
    from clew.hallucination.detectors.similar_answers import read_known

    kept = [(vector, label) for vector, label in found if vector is not None]
    if not kept:
        raise InputError(f"none of the {counted(len(found), 'answer')} can be checked.")
    labels = [UNLABELED if label is None else int(label) for _, label in kept]
    adapted = adapt_detector(detector, np.stack([one for one, _ in kept]), np.array(labels))
    figures = {name: value for name, value in adapted.kept.adapted.items() if name != "from"}
    place = save_detector(adapted, target, read_known(folder))
    return AdaptResult(path=place, excluded=len(found) - len(kept), **figures)


def _adapt_reader(given: AdaptSettings, report: Reporter) -> AdaptResult:
    """Train a reader further, or another model in its way."""
    unsuited, device = ("feedback", "feedback_file", "unlabeled", "rows"), given.place_reader()
    if given.labeled is None or any(getattr(given, name) for name in unsuited):
        raise InputError(
            "a reader is adapted to `labeled` answers only: give a file with source, answer and "
            "label, and if you can, spans; omit `feedback`, `feedback_file`, `unlabeled` and "
            "`rows`."
        )
    target = local_path(given.out)
    refuse_reader(target, overwrite=given.overwrite)
    describe_rows(given.labeled, given.row_format, report)
    load_libraries(report, model=given.model)
    from clew.base.cpu import Threads
    from clew.hallucination.grounded.adapting import adapt_reader, read_labeled

    answers, excluded = read_labeled(given.labeled, given.row_format)
    with Threads(given.threads, report):
        reader, figures = adapt_reader(
            given.detector,
            answers,
            model=None if given.model is None else str(given.model),
            device=device,
            report=report,
            should_stop=given.should_stop,
        )
    reader.save(target)
    return AdaptResult(path=target, excluded=excluded, **figures)


def _read_answers(
    detector: "Detector", given: AdaptSettings, report: Reporter
) -> list["ReadAnswer"]:
    """All answers; those of samples are not passed through the model again."""
    found = _read_feedback(detector, given, report)
    others: list[tuple[ExistingAnswers, bool]] = []
    for source, is_labeled in ((given.labeled, True), (given.unlabeled, False)):
        if source is not None and _is_samples(source):
            found += _read_samples(detector, source, is_labeled=is_labeled)
        elif source is not None:
            others.append((_open(source, detector, given), is_labeled))
    labels = sum(label is not None for _, label in found)
    labels += sum(
        one.hallucinated is not None for some, use in others if use for one in some.read(0)
    )
    if labels < _LEAST_LABELS:  # before the model is loaded
        is_file = isinstance(given.labeled, str | Path)
        raise InputError(
            f"{counted(labels, 'answer')} have a label, but adaptation requires at least "
            f"{_LEAST_LABELS}: label more answers.",
            setting="labeled" if is_file else None,
            value=given.labeled if is_file else None,
        )
    return found + _pass_answers(detector, given, others, report)


def _read_feedback(
    detector: "Detector", given: AdaptSettings, report: Reporter
) -> list["ReadAnswer"]:
    """The labels of `clew serve`; their answers were passed through the model there."""
    import numpy as np

    from clew.hallucination.detectors.data import BlankAnswer
    from clew.hallucination.detectors.detector_folder import hash_method
    from clew.hallucination.live.feedback import FEEDBACK_FILE, read_feedback

    if not given.feedback and given.feedback_file is None:
        return []
    assert detector.folder is not None  # it was read from there
    path = local_path(given.feedback_file or detector.folder / FEEDBACK_FILE)
    found = read_feedback(path, hash_method(detector))
    blank: Any = BlankAnswer(detector.sample_shape, detector.fields)
    expected = detector.read_vectors(blank, np.zeros(1)).shape[1]
    if found.vectors.shape[1] != expected:
        raise StoreError(
            f'the vectors in "{path}" have {found.vectors.shape[1]:,} numbers, but those of the '
            f"detector have {expected:,}: restore the file from a backup."
        )
    if found.others:
        report(Note(f"excluded: {counted(found.others, 'label')} for another detector"))
    return [*zip(found.vectors, map(bool, found.labels), strict=True)]


def _is_samples(source: Any) -> TypeGuard[str | Path]:
    """Whether this is a folder of `clew preprocess`."""
    kinds = ("answers", "sequences")
    is_named = isinstance(source, str | Path)
    return is_named and any((as_path(source) / kind / MANIFEST_NAME).exists() for kind in kinds)


def _read_samples(
    detector: "Detector", source: str | Path, *, is_labeled: bool
) -> list["ReadAnswer"]:
    from clew.hallucination.detectors.calibration import read_sample_vectors
    from clew.hallucination.samples.answers import AnswerFeatures

    vectors, labels = read_sample_vectors(detector, AnswerFeatures(as_path(source)))
    return [
        (vector, bool(label) if is_labeled else None)
        for vector, label in zip(vectors, labels, strict=True)
    ]


def _open(source: Any, detector: "Detector", given: AdaptSettings) -> "ExistingAnswers":
    from clew.hallucination.live.existing import open_answers

    answers = open_answers(source, detector, given.row_format)
    if answers.is_training_data:
        raise InputError(
            f"the detector {detector.name} was fitted on these answers: use others.",
            setting="labeled",
            value=source,
        )
    return answers


def _pass_answers(
    detector: "Detector",
    given: AdaptSettings,
    sources: Sequence[tuple["ExistingAnswers", bool]],
    report: Reporter,
) -> list["ReadAnswer"]:
    if not sources:
        return []
    from clew.base.cpu import Threads
    from clew.hallucination.live.existing import read_vectors
    from clew.hallucination.live.session import Session

    model = str(given.model) if isinstance(given.model, str | Path) else given.model
    threads, found = Threads(given.threads, report), list[ReadAnswer]()
    planned = sum(answers.count for answers, _ in sources)
    with (
        Session.open(
            detector, model=model, **given.placement, reporter=report, threads=threads
        ) as session,
        report_work(report, WorkStarted(noun="answers", verb="read", planned=planned)),
    ):
        for answers, is_labeled in sources:
            read = read_vectors(session, answers, given.rows, report, given.should_stop)
            found += [(vector, label if is_labeled else None) for vector, label in read]
    return found
