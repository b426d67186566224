"""Score answers that exist already with a detector."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from clew.base.commands import Cached, Watched, select, takes
from clew.base.errors import InputError, StoppedError
from clew.base.progress import Note, Reporter, WorkStarted, report_work
from clew.base.settings import check_exists, check_least, check_writable
from clew.base.tables import Tabular
from clew.base.texts import counted, list_some
from clew.base.urls import is_url, local_path
from clew.hallucination.grounded import is_reader
from clew.hallucination.hub import fetch_detector, find_origin
from clew.hallucination.workflow.preparing import (
    ModelPlacement,
    OnCluster,
    OnRisk,
    RowSettings,
    load_libraries,
)
from clew.storage.run_file import UrlNeverFromFile

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from clew.hallucination.capture import LoadedModel
    from clew.hallucination.detectors import Detector
    from clew.hallucination.detectors.data import Promise, RiskPolicy
    from clew.hallucination.grounded import Reader
    from clew.hallucination.live.existing import ExistingAnswers, ReaderScorer, WindowScorer
    from clew.hallucination.live.risk_file import RiskSummary
    from clew.hallucination.questions import RowFormat
    from clew.hallucination.questions.columns import ColumnUse

    DataFrame: TypeAlias = "pandas.DataFrame | polars.DataFrame"
    # The rows of each window of answers, from one on, by its number.
    ScoreFrom: TypeAlias = "Callable[[int], Iterator[list[dict[str, Any]]]]"

# Of the rows. In format 1, which had no number, unfamiliar answers had a verdict.
_FORMAT = 2
_NOT_THE_ERROR = (
    "the detector was trained without span labels: the risk of a token says how likely the answer "
    "is hallucinated, judging by this token, and does not point at the error"
)


@dataclass(frozen=True, kw_only=True, repr=False)
class ScoreResult(Tabular):
    """The risks of answers. `path` is the file they are in; without one, `rows` has them. `warning`
    says that the detector may be guessing. `promise` is what the detector promises of the answers
    with a low risk; None if nothing, or if these are unlike the answers that it was promised for,
    as `no_promise` says."""

    path: Path | None
    summary: "RiskSummary"
    detector: str
    warning: str | None = None
    promise: str | None = None
    no_promise: str | None = None
    rows: tuple[dict[str, Any], ...] = ()

    @property
    def table(self) -> "pa.Table":
        from clew.hallucination.live.risk_file import read_risks, to_table

        return to_table(self.rows) if self.path is None else read_risks(self.path)

    def as_dict(self) -> dict[str, Any]:
        path = None if self.path is None else str(self.path)
        about = {"path": path, "detector": self.detector, "warning": self.warning}
        promised = {"promise": self.promise, "no_promise": self.no_promise}
        return {**about, **promised, **asdict(self.summary)}

    def __repr__(self) -> str:
        states = ", ".join(f"{count:,} {state}" for state, count in self.summary.states.items())
        return f"ScoreResult({counted(self.summary.answers, 'answer')}: {states})"


@dataclass(frozen=True, kw_only=True)
class ScoreSettings(ModelPlacement, OnCluster, RowSettings, OnRisk, Cached, Watched):
    """What `score` takes.

    Args:
        questions: A file (.jsonl, .json, .csv, .tsv, .parquet, .arrow) with the columns question
            and answer, and optionally source, id, accepted answers (answers) or a label; a
            Hugging Face dataset as name:config:split; or a trace store or its URL, whose own
            tokens are scored.
        keep_columns: Further columns of the file to keep in the result: names between commas, or
            all that are not used. [default: none]
        detector: Folder of a detector that "clew compare" or "clew train" kept; or ready, the one
            that comes with clew for the built-in model; or grounded, the built-in reader, which
            finds what the source of each answer does not support, whichever LLM wrote it; or the
            folder of a reader of your own.
        out: File to write: .jsonl, .csv or .arrow. [default: print a table]
        tokens: Also give the risk of every token, if the detector has a token probe. Without span
            labels in training it does not point at the error.
        num_samples: Score only the first N answers. [default: all]
        model: The detector's model, if it is in another place now. [default: as in the detector]
        rows: Number of answers to pass at once. [default: 64 on a GPU, 16 on a CPU]
        dtype: auto, float32, float16 or bfloat16. auto is that of the detector's training answers.
        threads: CPU threads to use. [default: all cores, or fewer if that is faster while other
            processes use them]
        cluster: Score on several workers on Ray: ray (the cluster of RAY_ADDRESS, one that runs
            here, or a new one on this machine) or ray://host:port. Requires "clew[ray]".
        overwrite: Start over, and replace a file with other risks.
        should_stop: Called between windows of 8 batches; when it returns True, the run saves its
            progress and stops.
    """

    questions: "str | Path | Sequence[Mapping[str, Any]] | DataFrame"
    detector: "str | Path | Detector | Reader"
    out: Annotated[str | Path | None, UrlNeverFromFile] = None
    tokens: bool = False
    num_samples: int | None = None
    model: "str | Path | LoadedModel | None" = None
    rows: int | None = None
    threads: int | None = None
    overwrite: bool = False
    keep_columns: str | Sequence[str] | None = None


@takes(ScoreSettings)
def score(given: ScoreSettings) -> ScoreResult:
    """Score answers that exist already: the calibrated probability that each is hallucinated.

    Each answer passes through the model once, after its question in the detector's prompt. Files
    are read and written a few answers at a time. Run the same command again to resume a run that
    was stopped or killed.

    Returns:
        The risks: `summary` has the totals; `table` is an Arrow table; `to_pandas()` and
        `to_polars()` convert it.

    Raises:
        InputError: The answers, the detector or a setting cannot be used, or the detector is for
            another model.
        SettingsMismatchError: The file was started with different settings.
        StoreError: The detector is damaged, or another process is writing the file.
        StoppedError: `should_stop` returned True; everything so far is saved.

    Examples:
        >>> risks = clew.score(questions="answers.jsonl", detector="comparison/detector")
        >>> risks.to_pandas().sort_values("risk")
    """
    from clew.base.progress import log_event
    from clew.hallucination.detectors.folder import check_detector
    from clew.hallucination.live.risk_file import choose_format

    report = given.reporter or log_event
    # Before the imports, which take seconds.
    given = replace(given, detector=fetch_detector(given.detector, report))
    check_exists("detector", None if is_reader(given.detector) else given.detector)
    check_least("num_samples", given.num_samples)
    check_least("rows", given.rows)
    questions = given.questions
    if isinstance(questions, Iterator):  # which can be read once only
        questions = list(questions)
    use = describe_rows(questions, given.row_format, report)
    columns = () if use is None else use.kept(given.row_format)
    if not is_reader(given.detector):
        check_detector(given.detector)
    if given.out is not None:
        choose_format(local_path(given.out))
        check_writable("out", given.out, is_file=True)
    load_libraries(report, model=given.model)
    from clew.hallucination.detectors.data import RiskPolicy
    from clew.hallucination.grounded import Reader
    from clew.hallucination.live.existing import ScoringWorker, choose_rows
    from clew.hallucination.live.risk_file import RiskFile, name_kept, summarize
    from clew.storage.mirror import open_folder

    policy = select(RiskPolicy, given)
    if isinstance(questions, str | Path) and is_url(questions):
        questions = open_folder(questions, cache_dir=given.cache_dir, cache_size=given.cache_size)
    detector, model = given.detector, given.model
    if is_reader(detector) or isinstance(detector, Reader):
        kept = _with_reader(given, questions, use, report)
    else:
        kept = _with_detector(given, questions, report)
    answers = kept.answers
    count = min(answers.count, given.num_samples or answers.count)
    if answers.note:
        report(Note(answers.note))
    if answers.is_training_data:
        report(
            Note(
                f"warning: the detector {kept.name} was fitted on answers of {questions}"
                ", so its risks look better there than they are"
            )
        )
    where = given.spread(threads=given.threads, device=given.device)
    is_shared = isinstance(detector, str | Path) and isinstance(model, str | Path | None)
    if where is not None and not is_shared:
        raise InputError("each worker of a cluster loads the model itself: give its name.")

    @contextmanager
    def open_scorer() -> "Iterator[tuple[int, ScoreFrom]]":
        """The size of a window, and what scores windows from an answer on."""
        if where is not None:
            worker = select(
                ScoringWorker,
                given,
                answers=_full_path(questions) if isinstance(questions, str | Path) else questions,
                count=count,
                detector=find_origin(str(detector)) or _full_path(detector),
                model=None if model is None else _full_path(model),
                rows=choose_rows(given.rows, given.device),
                format=given.row_format,
            )
            yield worker.window, partial(worker.spread, where, report, given.should_stop)
            return
        with kept.open(count) as scorer:
            yield scorer.window, partial(_score_here, scorer, count, given.should_stop)

    def run(score_from: "ScoreFrom", first: int) -> Iterator[list[dict[str, Any]]]:
        started = WorkStarted(noun="answers", verb="scored", planned=count, done=first)
        with report_work(report, started):
            for window in score_from(first):
                yield [_withhold(_add_kept(row, columns), policy) for row in window]

    about: dict[str, Any] = {"detector": kept.name, "warning": kept.warning}
    if given.out is None:
        with open_scorer() as (_, score_from):
            rows = tuple(row for window in run(score_from, 0) for row in window)
        totals = summarize(rows)
        about |= _promise(kept.promise, totals)
        return ScoreResult(path=None, summary=totals, rows=rows, **about)
    settings = {
        "format": _FORMAT,
        "detector": kept.described,
        "answers": answers.identity,
        "count": count,
        "tokens": given.tokens,
        "rows": given.rows,
        "dtype": kept.dtype,
        **({} if policy.on_risk == "flag" else asdict(policy)),
    }
    out = local_path(given.out)
    names = tuple(map(name_kept, columns))
    with RiskFile(out, settings, tokens=given.tokens, spans=kept.finds_spans, kept=names) as file:
        if given.overwrite:
            file.discard()
        summary = file.finished()
        if summary is None:
            with open_scorer() as (window, score_from):
                first = file.start(count=count, window=window)
                if first:
                    report(Note(f"resuming: {first:,} of {count:,} answers are scored already"))
                for some in run(score_from, first):
                    file.append(some)
            summary = file.finish()
    return ScoreResult(path=out, summary=summary, **about, **_promise(kept.promise, summary))


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A detector or a reader with the answers to score: `open` loads its model, for so many of
    them."""

    name: str
    answers: "ExistingAnswers"
    open: "Callable[[int], AbstractContextManager[WindowScorer | ReaderScorer]]"
    described: dict[str, Any]
    dtype: str
    warning: str | None = None
    promise: "Promise | None" = None
    finds_spans: bool = False


def _with_detector(given: ScoreSettings, questions: Any, report: Reporter) -> _Kept:
    from clew.base.cpu import Threads
    from clew.hallucination.detectors import Detector, load_detector
    from clew.hallucination.live.existing import WindowScorer, open_answers
    from clew.hallucination.live.session import Session

    detector, model = given.detector, given.model
    kept = detector if isinstance(detector, Detector) else load_detector(str(detector))
    if given.tokens and kept.tokens is None:
        raise InputError(
            f"the detector {kept.name} has no token probe. Omit it, or use a detector that has "
            "one.",
            setting="tokens",
            value=given.tokens,
        )
    if given.tokens and kept.token_probe is None:
        report(Note(_NOT_THE_ERROR))
    answers = open_answers(questions, kept, given.row_format)

    @contextmanager
    def load(count: int) -> Iterator[WindowScorer]:
        with Session.open(
            kept,
            model=str(model) if isinstance(model, str | Path) else model,
            **given.placement,
            reporter=report,
            threads=Threads(given.threads, report),
        ) as session:
            yield WindowScorer(
                session, answers, count, rows=given.rows, tokens=given.tokens, reporter=report
            )

    return _Kept(
        name=kept.name,
        answers=answers,
        open=load,
        described=describe_detector(kept),
        dtype=_find_dtype(kept, model, given.dtype),
        warning=kept.warning,
        promise=kept.promise,
    )


def _with_reader(
    given: ScoreSettings, questions: Any, use: "ColumnUse | None", report: Reporter
) -> _Kept:
    from clew.base.cpu import Threads
    from clew.hallucination.grounded import Reader, describe_reader, load_reader
    from clew.hallucination.grounded.folder import reader_folder
    from clew.hallucination.grounded.reader import read_settings
    from clew.hallucination.live.existing import ReaderScorer, open_answers

    reader, model = given.detector, given.model
    assert isinstance(reader, str | Path | Reader)
    if use is not None and not (use.roles["context"] or use.roles["messages"]):
        raise InputError(
            f"{use.name} has no column with sources to compare the answers with (found: "
            f"{list_some(use.columns)}): name it source or context, or say which it is with "
            '`columns`, such as "source=Quelle".'
        )
    if model is not None and not isinstance(model, str | Path):
        raise InputError("a reader loads its model itself: give its name.", setting="model")
    described, device = describe_reader(reader), given.place_reader()
    if isinstance(reader, Reader):
        settings = reader.settings
    else:
        settings = read_settings(reader_folder(reader))
    answers = open_answers(questions, None, given.row_format)

    @contextmanager
    def load(count: int) -> Iterator[ReaderScorer]:
        loaded = reader
        if not isinstance(loaded, Reader):
            place = None if model is None else str(model)
            loaded = load_reader(loaded, device=device, model=place)
        with Threads(given.threads, report):
            yield ReaderScorer(
                loaded, answers, count, rows=given.rows, tokens=given.tokens, reporter=report
            )

    return _Kept(
        name=described["name"],
        answers=answers,
        open=load,
        described=described,
        dtype="float32",
        promise=settings.valid_promise,
        finds_spans=True,
    )


def _promise(promise: "Promise | None", summary: "RiskSummary") -> dict[str, Any]:
    """What is promised of these answers, or why nothing is."""
    from clew.hallucination.detectors.promises import Traffic

    if promise is None:
        return {}
    traffic, levels = Traffic(promise, most=None), summary.risk_levels
    traffic.count({**levels, "none": summary.answers - sum(levels.values())})
    if difference := traffic.difference:
        return {"no_promise": f"these are not the answers it was promised for: {difference}"}
    return {"promise": promise.text}


def _withhold(row: dict[str, Any], policy: "RiskPolicy") -> dict[str, Any]:
    """Only the question, the risk and the length stay of an answer that is withheld."""
    if not policy.withholds(row["risk_level"]):
        return row
    left: dict[str, Any] = {"answer": policy.replacement, "tokens": [], "spans": []}
    return {name: left.get(name, value) for name, value in row.items()}


def describe_rows(questions: Any, format: "RowFormat", report: Reporter) -> "ColumnUse | None":
    """Say what the columns of a file or a table are taken for; a trace store, for which this is
    None, has its own."""
    from clew.hallucination.questions import describe_answers, open_records
    from clew.storage.manifest import MANIFEST_NAME

    if isinstance(questions, str | Path) and (
        is_url(questions) or (Path(questions) / MANIFEST_NAME).exists()
    ):
        return None
    use = describe_answers(open_records(questions, format))
    if use.columns:
        report(Note(use.text))
    return use


def _add_kept(row: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    from clew.hallucination.live.existing import KEPT
    from clew.hallucination.live.risk_file import name_kept

    kept = row.pop(KEPT)
    return row | {name_kept(name): kept.get(name) for name in columns}


def _score_here(
    scorer: "WindowScorer | ReaderScorer", count: int, should_stop: Callable[[], bool], first: int
) -> Iterator[list[dict[str, Any]]]:
    for start in range(first, count, scorer.window):
        if should_stop():
            raise StoppedError("stopped; the risks so far are saved.")
        yield scorer.score(start)


def _full_path(name: object) -> str:
    """For a process in another folder; the name of a dataset or model stays as it is."""
    path = Path(str(name))
    return str(path.resolve()) if path.exists() else str(name)


def _find_dtype(detector: "Detector", model: "str | Path | LoadedModel | None", dtype: str) -> str:
    """In which precision the model passes answers, found without loading it."""
    if model is not None and not isinstance(model, str | Path):
        return str(model.model.dtype).removeprefix("torch.")
    return str(detector.model.get("dtype") or dtype) if dtype == "auto" else dtype


def describe_detector(detector: "Detector") -> dict[str, Any]:
    """What identifies a detector: its risks change with any of it."""
    from clew.hallucination.detectors.detector_folder import hash_weights

    scale = detector.calibration
    return {
        "name": detector.name,
        "threshold": detector.threshold,
        "calibration": None if scale is None else asdict(scale),
        "weights": hash_weights(detector),
        "prompt": detector.prompt.describe(),
        "model": detector.model.get("fingerprint"),
    }
