"""A set from end to end: train it, or everything at once (create, import, train, identify,
review). The command line runs and displays the same steps."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew.base.errors import ClewError, InputError
from clew.base.progress import Note, Reporter, log_event
from clew.base.tables import Tabular
from clew.base.texts import counted, tenth_percent
from clew.engine import PlanRequest
from clew.engine.checkpoint import read_settings
from clew.engine.folders import LAST
from clew.engine.torchrun import is_first_process
from clew.patterns.identification.identify import IdentifyResult, identify_photos
from clew.patterns.identification.results import find_identified
from clew.patterns.library.importing import import_photos
from clew.patterns.library.pattern_set import PatternSet, read_results
from clew.patterns.library.placing import check_set_name
from clew.patterns.photos import find_photos
from clew.patterns.report.page import write_report
from clew.patterns.review import run_review
from clew.patterns.settings import FlowSettings, IdentifySettings, ReviewSettings
from clew.patterns.trained.model import PatternModel, load_classifier
from clew.patterns.training import PatternsConfig, train_patterns
from clew.storage.run_file import write_run_file

logger = logging.getLogger(__name__)


def plan_training(pattern_set: PatternSet, how: PatternsConfig | None = None) -> PatternsConfig:
    """The next training of a set: resumes one that was not finished, else starts from the weights
    of the newest model (from scratch with `overwrite`).

    `how` has the training settings; its folder and photos are replaced by the set's own. Raises
    InputError for a set without photos.
    """
    if not pattern_set.find_photos():
        raise InputError(
            f'the set "{pattern_set.name}" has no photos yet: add some with ',
            pattern_set.call("import_photos", pattern_set.name, "DIR"),
            ".",
        )
    out, start_from = pattern_set.run_folder()
    how = how or PatternsConfig(data=pattern_set.photos, out=out)
    # An unfinished run that started without earlier weights is resumed without them.
    began = (out / LAST).exists() and read_settings(out).get("started_from") is None
    is_from_scratch = how.overwrite or how.from_scratch or began
    return replace(
        how,
        data=pattern_set.photos,
        out=out,
        images_dir=pattern_set.cache,
        start_from=None if is_from_scratch else start_from,
    )


def run_training(
    config: PatternsConfig,
    reporter: Reporter = log_event,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    pattern_set: PatternSet | None = None,
) -> "ClassifierResult":
    """Train with a complete configuration, and write the report."""
    results = train_patterns(config, reporter, should_stop)
    if is_first_process():
        write_page(config.out, reporter)
    return ClassifierResult(path=config.out, model=config.out, raw=results, pattern_set=pattern_set)


def write_page(folder: Path, reporter: Reporter) -> None:
    """Write the report. If that fails, only report it: the training itself is complete."""
    try:
        write_report(folder)
    except ClewError as error:
        reporter(Note(f"the report could not be written: {error}"))


@dataclass(frozen=True, kw_only=True)
class FlowResult:
    """The result of a flow: the set, the `results` (results.json) of its newest model, and
    `identified`, None if nothing was to be identified."""

    pattern_set: PatternSet
    results: dict[str, Any]
    identified: IdentifyResult | None


class FlowSteps:
    """Carries out the steps of a flow; progress goes to the log. A user interface overrides what it
    shows."""

    def created(self, pattern_set: PatternSet) -> None:
        """Called after the set was created."""
        logger.info('created the set "%s" in %s', pattern_set.name, pattern_set.folder)

    def import_photos(self, pattern_set: PatternSet, sources: Sequence[Path]) -> None:
        import_photos(pattern_set, sources)

    def train(self, pattern_set: PatternSet, config: PatternsConfig) -> dict[str, Any]:
        """Train the set; returns the contents of its results.json."""
        return run_training(config, pattern_set=pattern_set).raw

    def keep_model(self, pattern_set: PatternSet, results: dict[str, Any]) -> None:  # noqa: ARG002
        """Called instead of `train` if no photo was added or removed since the newest model was
        trained."""
        logger.info('"%s" is already trained: no photos were added or removed', pattern_set.name)

    def identify(self, given: IdentifySettings) -> IdentifyResult:
        return identify_photos(given)

    def review(self, given: ReviewSettings) -> None:
        run_review(given)


def run_flow(given: FlowSettings, steps: FlowSteps | None = None) -> FlowResult:
    """Create, import, train, identify and review, skipping the steps that were not requested. The
    same call again resumes: photos are imported once, and a set is trained again only when photos
    were added or removed.

    Raises InputError for foreseeable problems before anything is done, else what the steps raise.
    """
    steps, name, library = steps or FlowSteps(), check_set_name(given.name), Path(given.library)
    sources = [Path(source) for source in given.sources]
    is_known = name in {one.name for one in PatternSet.all(library)}
    _check(given, library / name, sources, is_known=is_known)
    if is_known:
        pattern_set = PatternSet.open(name, library)
    else:
        pattern_set = PatternSet.create(name, library)
        steps.created(pattern_set)
    if sources:
        steps.import_photos(pattern_set, sources)
    results = _train_if_changed(given, steps, pattern_set)
    identified = None
    if given.identify is not None:
        identified = steps.identify(
            IdentifySettings(given.identify, name=name, library=library, device=given.device)
        )
    if given.review or given.web:
        folder = None if identified is None else identified.folder
        steps.review(ReviewSettings(name, library=library, identified=folder, web=given.web))
    return FlowResult(pattern_set=pattern_set, results=results, identified=identified)


def _train_if_changed(
    given: FlowSettings, steps: FlowSteps, pattern_set: PatternSet
) -> dict[str, Any]:
    if (model := pattern_set.unchanged_model()) is not None:
        results = read_results(model)
        steps.keep_model(pattern_set, results)
        return results
    request = PlanRequest(device=given.device, threads=given.threads)
    how = PatternsConfig(
        data=pattern_set.photos, out=pattern_set.runs, epochs=given.epochs, request=request
    )
    training = plan_training(pattern_set, how)
    results = steps.train(pattern_set, training)
    # The run.toml that trains the set with the same settings again.
    settings = {"name": pattern_set.name, "library": pattern_set.library}
    settings |= {"epochs": given.epochs, "device": given.device}
    write_run_file(training.out, "patterns train", settings)
    return results


def _check(given: FlowSettings, folder: Path, sources: list[Path], *, is_known: bool) -> None:
    """Check everything that could fail before hours of training."""
    for photos in (*sources, *([] if given.identify is None else [Path(given.identify)])):
        find_photos(photos)
    if not is_known and not sources:
        raise InputError(
            f'there is no set "{folder.name}" in "{folder.parent}" yet: give the photos to import '
            "with `sources`."
        )
    is_reviewed = given.review or given.web
    if is_reviewed and given.identify is None and not (is_known and find_identified(folder)):
        raise InputError(
            "`review` requires identified photos: give the photos to identify with `identify`."
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ClassifierResult(Tabular):
    """A photo classifier and its metrics on test photos.

    `path` is the folder with results.json and the report, `model` the folder of the classifier,
    `raw` the contents of results.json. `is_new` is False if a set was not trained again because its
    photos have not changed.
    """

    path: Path
    model: Path
    raw: dict[str, Any]
    pattern_set: PatternSet | None = None
    is_new: bool = True

    @property
    def accuracy(self) -> float:
        """Share of the test photos that were classified correctly."""
        return float(self.raw["test_accuracy"])

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% confidence interval of the accuracy."""
        low, high = self.raw["test_accuracy_ci"]
        return float(low), float(high)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.raw["classes"])

    @property
    def table(self) -> pa.Table:
        """One row per class: precision, recall, F1 and the number of photos per split."""
        return pa.Table.from_pylist(self.raw["per_class"])

    @property
    def confusion(self) -> list[list[int]]:
        """Test photos by true class (row) and predicted class (column)."""
        return [list(row) for row in self.raw["confusion"]]

    @property
    def report(self) -> Path:
        """The report: all metrics, and the mistakes."""
        return self.path / "report.html"

    def load(self, device: str | None = None) -> PatternModel:
        """The classifier, ready to predict."""
        return load_classifier(self.model, device)

    def __repr__(self) -> str:
        return f"ClassifierResult({self._summary()}; {self.path})"

    def _repr_html_(self) -> str:
        return f"<p>{self._summary()}</p>{super()._repr_html_()}"

    def _summary(self) -> str:
        low, high = map(tenth_percent, self.interval)
        return (
            f"test accuracy {tenth_percent(self.accuracy)} [{low}, {high}] on "
            f"{counted(self.raw['test_photos'], 'photo')} of "
            f"{counted(len(self.classes), 'class', 'classes')}"
        )
