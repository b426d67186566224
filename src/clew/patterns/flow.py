"""The steps for a named set from end to end: train it, or everything at once (create, import,
train, identify, review). The command line runs and displays the same steps."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from clew.base.errors import InputError
from clew.base.tables import Tabular
from clew.base.texts import counted, tenth_percent
from clew.engine import PlanRequest
from clew.engine.checkpoint import read_settings
from clew.engine.folders import LAST
from clew.engine.processes import is_first_process
from clew.patterns.identification.identify import (
    IdentifyConfig,
    IdentifyResult,
    configure_identification,
    identify_photos,
)
from clew.patterns.identification.results import find_identified
from clew.patterns.library.choose import Chosen, choose_model
from clew.patterns.library.folders import LIBRARY, read_results
from clew.patterns.library.importing import import_photos
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.library.placing import check_set_name
from clew.patterns.photos import find_photos
from clew.patterns.report.page import write_report
from clew.patterns.review import ReviewConfig
from clew.patterns.review.app import run_review
from clew.patterns.trained.model import PatternModel, load_classifier
from clew.patterns.training import PatternsConfig, train_patterns
from clew.storage.run_file import write_run_file

logger = logging.getLogger(__name__)


def plan_training(
    pattern_set: PatternSet, how: PatternsConfig | None = None, *, only_if_changed: bool = False
) -> PatternsConfig | None:
    """The next training of a set: resumes one that was not finished, else starts from the weights
    of the newest model (from scratch with `overwrite`).

    `how` has the training settings; its folder and photos are replaced by the set's own. With
    `only_if_changed` returns None if no photo was added or removed since the newest model. Raises
    InputError for a set without photos.
    """
    if not pattern_set.find_photos():
        raise InputError(
            f'the set "{pattern_set.name}" has no photos yet: add some with ',
            pattern_set.call_to_import(),
            ".",
        )
    latest, runs = pattern_set.latest_model(), pattern_set.all_runs()
    is_trained = latest is not None and latest == runs[-1]
    if only_if_changed and is_trained and not pattern_set.changed_since(runs[-1]):
        return None
    out, start_from = pattern_set.run_folder()
    how = how or PatternsConfig(data=pattern_set.photos, out=out)
    is_from_scratch = how.overwrite or how.from_scratch or _began_from_scratch(out)
    return replace(
        how,
        data=pattern_set.photos,
        out=out,
        images_dir=pattern_set.cache,
        start_from=None if is_from_scratch else start_from,
    )


def _began_from_scratch(run: Path) -> bool:
    """Whether there is an unfinished run that started without earlier weights."""
    if not (run / LAST).exists():
        return False
    return read_settings(run).get("started_from") is None


@dataclass(frozen=True, kw_only=True)
class FlowResult:
    """The result of a flow: the set, the `results` (results.json) of its newest model, and
    `identified`, None if nothing was to be identified."""

    pattern_set: PatternSet
    results: dict[str, Any]
    identified: IdentifyResult | None


class FlowSteps(Protocol):
    """Carries out the steps of a flow; each user interface implements its own."""

    def created(self, pattern_set: PatternSet) -> None:
        """Called after the set was created."""

    def import_photos(self, pattern_set: PatternSet, sources: Sequence[Path]) -> None: ...

    def train(self, pattern_set: PatternSet, config: PatternsConfig) -> dict[str, Any]:
        """Train the set; returns the contents of its results.json."""

    def keep_model(self, pattern_set: PatternSet, results: dict[str, Any]) -> None:
        """Called instead of `train` if no photo was added or removed since the newest model was
        trained."""

    def identify(self, chosen: Chosen, config: IdentifyConfig) -> IdentifyResult: ...

    def review(self, chosen: Chosen, config: ReviewConfig) -> None: ...


class LoggedSteps:
    """Runs the steps without a user interface; progress goes to the log. `web` reviews on a
    page."""

    def __init__(self, *, web: bool = False) -> None:
        self._web = web

    def created(self, pattern_set: PatternSet) -> None:
        logger.info('created the set "%s" in %s', pattern_set.name, pattern_set.folder)

    def import_photos(self, pattern_set: PatternSet, sources: Sequence[Path]) -> None:
        import_photos(pattern_set, sources)

    def train(self, pattern_set: PatternSet, config: PatternsConfig) -> dict[str, Any]:  # noqa: ARG002
        results = train_patterns(config)
        if is_first_process():
            write_report(config.out)
        return results

    def keep_model(self, pattern_set: PatternSet, results: dict[str, Any]) -> None:  # noqa: ARG002
        logger.info('"%s" is already trained: no photos were added or removed', pattern_set.name)

    def identify(self, chosen: Chosen, config: IdentifyConfig) -> IdentifyResult:  # noqa: ARG002
        return identify_photos(config)

    def review(self, chosen: Chosen, config: ReviewConfig) -> None:
        run_review(chosen, config, web=self._web)


def run_flow(
    name: str,
    steps: FlowSteps,
    *,
    sources: Sequence[Path] = (),
    identify: Path | None = None,
    review: bool = False,
    epochs: int | None = None,
    library: Path = LIBRARY,
    device: str | None = None,
    threads: int | None = None,
) -> FlowResult:
    """Create, import, train, identify and review, skipping the steps that were not requested. The
    same call again resumes: photos are imported once, and a set is trained again only when photos
    were added or removed.

    Raises InputError for foreseeable problems before anything is done, else what the steps raise.
    """
    name = check_set_name(name)
    is_known = name in {one.name for one in PatternSet.all(library)}
    _check(library / name, sources, identify, is_known=is_known, review=review)
    if is_known:
        pattern_set = PatternSet.open(name, library)
    else:
        pattern_set = PatternSet.create(name, library)
        steps.created(pattern_set)
    if sources:
        steps.import_photos(pattern_set, sources)
    request = PlanRequest(device=device, threads=threads)
    results = _train_if_changed(steps, pattern_set, epochs, request)
    chosen = choose_model(name, library=library)
    identified = None
    if identify is not None:
        asked = configure_identification(chosen, identify, device=device)
        identified = steps.identify(chosen, asked)
    if review:
        folder = None if identified is None else identified.folder
        steps.review(chosen, ReviewConfig(identified=folder))
    return FlowResult(pattern_set=pattern_set, results=results, identified=identified)


def _train_if_changed(
    steps: FlowSteps, pattern_set: PatternSet, epochs: int | None, request: PlanRequest
) -> dict[str, Any]:
    how = PatternsConfig(
        data=pattern_set.photos, out=pattern_set.runs, epochs=epochs, request=request
    )
    training = plan_training(pattern_set, how, only_if_changed=True)
    if training is None:
        model = pattern_set.latest_model()
        results = {} if model is None else read_results(model)
        steps.keep_model(pattern_set, results)
        return results
    results = steps.train(pattern_set, training)
    # The run.toml that trains the set with the same settings again.
    settings = {"name": pattern_set.name, "library": pattern_set.library}
    settings |= {"epochs": epochs, "device": request.device}
    write_run_file(training.out, "patterns train", settings)
    return results


def _check(
    folder: Path,
    sources: Sequence[Path],
    identify: Path | None,
    *,
    is_known: bool,
    review: bool,
) -> None:
    """Check everything that could fail before hours of training."""
    for photos in (*sources, *filter(None, [identify])):
        find_photos(photos)
    if not is_known and not sources:
        raise InputError(
            f'there is no set "{folder.name}" in "{folder.parent}" yet: give the photos to import '
            "with `sources`."
        )
    if review and identify is None and not (is_known and find_identified(folder)):
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
