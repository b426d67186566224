"""The ready detector: what is used for the built-in model when no detector is given. It is built
once from the built-in questions and kept in the user's cache."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from clew.base.errors import InputError, StoppedError
from clew.base.progress import Event, Note, Reporter, log_event
from clew.base.texts import counted
from clew.hallucination.capture import LoadedModel, QuestionSet
from clew.hallucination.detectors import Detector, load_detector
from clew.hallucination.live.shelf import Shelf
from clew.hallucination.llm.embedded import EMBEDDED_NAME
from clew.hallucination.llm.models import fingerprint
from clew.hallucination.questions import facts_version, load_questions
from clew.storage.hashing import hash_text
from clew.version import __version__

# More questions give a better detector and take longer: see docs/guides/ask.md for both.
_QUESTIONS = 600
# Methods that take seconds to fit and read what one pass through the model gives.
_METHODS = ("perplexity", "linear_probe", "linear_probe_pca", "lookback", "gated")
_COST = "once; about 4 minutes on two cores"
# Small, so that the bar moves every few seconds and Ctrl-C does not wait longer.
_SHARD, _BATCH = 100, 50


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a detector is built from: the questions to ask, and the methods to choose from."""

    questions: QuestionSet
    methods: tuple[str, ...]


def ready_detector(
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
    shelf = Shelf(root=root, name=_name(loaded), load=load_detector, reporter=reporter or log_event)

    def build(folder: Path) -> Path:
        shelf.reporter(Note(f"building a detector for {EMBEDDED_NAME} ({_COST})"))
        recipe = Recipe(questions=load_questions("facts", _QUESTIONS), methods=_METHODS)
        return build_detector(folder, loaded, recipe, shelf.reporter, should_stop)

    return shelf.get(build, should_stop)


def _name(loaded: LoadedModel) -> str:
    """Another version of clew, other questions or another model: another detector."""
    made_from = hash_text(__version__, facts_version(), str(_QUESTIONS), *_METHODS)
    return f"{EMBEDDED_NAME}-{fingerprint(loaded.model)[:8]}-{__version__}-{made_from[:8]}"


def build_detector(
    folder: Path,
    loaded: LoadedModel,
    recipe: Recipe,
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
    count = len(recipe.questions.questions)
    reporter(Note(f"1 of 3: {loaded.name or 'the model'} answers {count:,} questions"))
    config = ExtractConfig(
        model=loaded.name, out=traces, shard_size=_SHARD, generation_batch=_BATCH
    )
    quiet = _bars_only(reporter)
    done = extract(config, quiet, should_stop, loaded=loaded, questions=recipe.questions)
    if not done.finished:
        raise StoppedError(f"stopped; {counted(done.traces_made, 'new answer')} saved.")
    reporter(Note("2 of 3: the answers are labeled and turned into training samples"))
    label_store(traces, scores, overwrite=True)
    preprocess_store(PreprocessConfig(store=traces, scores_file=scores, out=samples), quiet)
    reporter(Note(f"3 of 3: {counted(len(recipe.methods), 'method')} are compared"))
    compared = CompareConfig(
        train_on=(samples,), test_on=(samples,), out=folder / "comparison", methods=recipe.methods
    )
    result = compare_methods(compared, quiet, should_stop)
    return result.folder / "detector"


def _bars_only(reporter: Reporter) -> Reporter:
    """What the steps remark is for those who run them one by one."""

    def report(event: Event, /) -> None:
        if not isinstance(event, Note):
            reporter(event)

    return report
