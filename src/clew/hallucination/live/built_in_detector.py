"""The detector that is used for the built-in model when none is given. It is built once from the
built-in questions, and kept in the user's cache."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import filelock
import platformdirs

from clew.base.errors import DiskFullError, InputError, StoppedError, StoreError, StoreLockedError
from clew.base.progress import Event, Note, Reporter, ignore_event, log_event
from clew.base.texts import counted
from clew.hallucination.capture import LoadedModel, QuestionSet
from clew.hallucination.detectors import Detector, load_detector
from clew.hallucination.live.feedback import FEEDBACK_FILE
from clew.hallucination.llm.embedded import EMBEDDED_NAME
from clew.hallucination.llm.models import fingerprint
from clew.hallucination.questions import facts_version, load_questions
from clew.storage.reading import hash_text
from clew.storage.writing import lock_file, sync_folder
from clew.version import __version__

# More questions give a better detector and take longer: see docs/guides/ask.md for both.
_QUESTIONS = 600
# Methods that take seconds to fit and read what one pass through the model gives.
_METHODS = ("perplexity", "linear_probe", "linear_probe_pca", "lookback", "gated")
_COST = "once; about 4 minutes on two cores"
# Small, so that the bar moves every few seconds and Ctrl-C does not wait longer.
_SHARD, _BATCH = 100, 50
_POLL_SECONDS = 0.5
Built = TypeVar("Built")


def built_in_detector(
    loaded: LoadedModel,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    cache: Path | None = None,
) -> Detector:
    """The detector of the built-in model, which must be `loaded`; built on first use. Raises
    InputError for another model, StoppedError if asked to stop (the next call resumes)."""
    if loaded.name != EMBEDDED_NAME:
        raise InputError(
            f"there is a ready detector for {EMBEDDED_NAME} only. Give the `detector` of this "
            'model, which "clew compare" keeps.',
            setting="model",
            value=loaded.name,
        )
    root = (cache or Path(platformdirs.user_cache_dir("clew"))) / "detectors"
    # Another version of clew, other questions or another model: another detector.
    made_from = hash_text(__version__, facts_version(), str(_QUESTIONS), *_METHODS)
    name = f"{EMBEDDED_NAME}-{fingerprint(loaded.model)[:8]}-{__version__}-{made_from[:8]}"
    report = reporter or log_event

    def build(folder: Path) -> Path:
        report(Note(f"building a detector for {EMBEDDED_NAME} ({_COST})"))
        questions = load_questions("facts", _QUESTIONS)
        return build_detector(folder, loaded, questions, _METHODS, report, should_stop)

    cached = CachedFolder(root=root, name=name, load=load_detector, reporter=report)
    return cached.get(build, should_stop)


def build_detector(
    folder: Path,
    loaded: LoadedModel,
    questions: QuestionSet,
    methods: tuple[str, ...],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> Path:
    """Ask the questions, label the answers, fit the methods, and return the folder of the best
    detector on validation. Everything is written into `folder`, where the next call resumes.
    Raises StoppedError if asked to stop."""
    # Most calls find a detector and need none of these.
    from clew.hallucination.capture import ExtractConfig, extract
    from clew.hallucination.comparison import CompareConfig, compare_methods
    from clew.hallucination.labels.label import label_store
    from clew.hallucination.samples.preprocess import preprocess_store
    from clew.hallucination.samples.source import PreprocessConfig

    traces, scores, samples = folder / "traces", folder / "scores.csv", folder / "samples"
    count = len(questions.questions)
    reporter(Note(f"1 of 3: {loaded.name or 'the model'} answers {count:,} questions"))
    config = ExtractConfig(
        model=loaded.name, out=traces, shard_size=_SHARD, generation_batch=_BATCH
    )
    quiet = _bars_only(reporter)
    done = extract(config, quiet, should_stop, loaded=loaded, questions=questions)
    if not done.finished:
        raise StoppedError(f"stopped; {counted(done.traces_made, 'new answer')} saved.")
    reporter(Note("2 of 3: the answers are labeled and turned into training samples"))
    label_store(traces, scores, overwrite=True)
    preprocess_store(PreprocessConfig(store=traces, scores_file=scores, out=samples), quiet)
    reporter(Note(f"3 of 3: {counted(len(methods), 'method')} are compared"))
    compared = CompareConfig(
        train_on=(samples,),
        test_on=(samples,),
        out=folder / "comparison",
        methods=methods,
        keep_at_chance=True,  # asking works even so, and says so
    )
    result = compare_methods(compared, quiet, should_stop)
    return result.folder / "detector"


def _bars_only(reporter: Reporter) -> Reporter:
    """What the steps remark is for those who run them one by one."""

    def report(event: Event, /) -> None:
        if not isinstance(event, Note):
            reporter(event)

    return report


@dataclass(frozen=True, kw_only=True)
class CachedFolder(Generic[Built]):
    """A place for one thing that takes minutes to build: the first process that needs it builds it,
    the others wait. What a killed process left is resumed; a damaged folder is built again.
    `load` reads the finished folder and raises StoreError if it is damaged."""

    root: Path
    name: str
    load: Callable[[Path], Built]
    reporter: Reporter

    def get(self, build: Callable[[Path], Path], should_stop: Callable[[], bool]) -> Built:
        """What is kept, after building it if necessary. `build` gets a folder to work in and
        returns the one in it to keep; everything else is removed. Raises StoppedError if asked to
        stop while another process builds."""
        if (found := self._load(ignore_event)) is not None:
            return found
        self.root.mkdir(parents=True, exist_ok=True)
        with _locked(self.root / f".{self.name}.lock", self.reporter, should_stop):
            if (found := self._load(self.reporter)) is None:
                self._move_into_place(self._build(build))
                found = self.load(self.folder)
        return found

    @property
    def folder(self) -> Path:
        return self.root / self.name

    def _load(self, reporter: Reporter) -> Built | None:
        if not self.folder.exists():
            return None
        try:
            return self.load(self.folder)
        except StoreError as error:
            reporter(Note(f"{self.folder} cannot be used and is built again ({error})"))
            return None

    def _build(self, build: Callable[[Path], Path]) -> Path:
        work = self._work
        is_resumed = work.exists()
        try:
            return build(work)
        except (DiskFullError, StoreLockedError):
            raise
        except StoreError as error:
            if not is_resumed:
                raise
            self.reporter(Note(f"an interrupted run cannot be resumed and is repeated ({error})"))
            shutil.rmtree(work)
            return build(work)

    def _move_into_place(self, made: Path) -> None:
        """Move it into place, and remove everything that it was made from; not what people said."""
        if (self.folder / FEEDBACK_FILE).is_file():
            os.replace(self.folder / FEEDBACK_FILE, made / FEEDBACK_FILE)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.replace(made, self.folder)
        sync_folder(self.root)
        shutil.rmtree(self._work)

    @property
    def _work(self) -> Path:
        return self.root / f".{self.name}.part"


@contextmanager
def _locked(path: Path, reporter: Reporter, should_stop: Callable[[], bool]) -> Iterator[None]:
    """Holds a lock. While another process has it, says so once and can be stopped."""
    lock, is_told = lock_file(path, timeout_seconds=_POLL_SECONDS), False
    while True:
        try:
            lock.acquire()
            break
        except filelock.Timeout:
            if not is_told:
                reporter(Note("another process is already building it: waiting"))
            is_told = True
        if should_stop():
            raise StoppedError("stopped while another process was building it.")
    try:
        yield
    finally:
        lock.release()
