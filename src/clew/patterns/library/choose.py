"""Finds the model to use: the one in a folder, the newest of a set, or that of the only set."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clew.base.errors import Call, InputError
from clew.base.urls import UrlPath, as_path, resolved
from clew.patterns.library.pattern_set import (
    SET_FILE,
    PatternSet,
    is_finished,
    is_started,
    read_results,
)
from clew.patterns.photos.find import SPLIT_FOLDERS, find_classes
from clew.patterns.photos.photo import SPLITS
from clew.patterns.settings import LIBRARY

if TYPE_CHECKING:
    from clew.patterns.trained.model import PatternModel


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A trained model, the set it belongs to, and the folder whose folders are its classes.

    `classes_folder` takes the photos that a person has labeled: None if unknown.
    """

    model: Path
    pattern_set: PatternSet | None
    classes_folder: Path | None
    loaded: "PatternModel | None" = None

    def load(self, device: str | None = None) -> "PatternModel":
        """The model, ready to predict. Raises InputError and StoreError."""
        from clew.patterns.trained.model import load_classifier

        if self.loaded is not None and device in (None, str(self.loaded.device)):
            return self.loaded
        return load_classifier(self.model, device)

    @property
    def home(self) -> Path:
        """The default folder for results: the set's, or the model's; for a model at a URL, the
        current folder."""
        if self.pattern_set is not None:
            return self.pattern_set.folder
        return Path() if isinstance(self.model, UrlPath) else self.model

    @property
    def title(self) -> str:
        """The name of the set, or of the model's folder."""
        return resolved(self.model if self.pattern_set is None else self.pattern_set.folder).name

    def call_to_identify(self) -> Call:
        """The call that identifies photos with this model, for a hint."""
        if self.pattern_set is None:
            return Call("clew.patterns.identify", ("FOLDER",), {"model": str(self.model)})
        return self.pattern_set.call("identify", "FOLDER", name=self.pattern_set.name)

    def call_to_review(self, settings: dict[str, object]) -> Call:
        """The call that reviews the photos that the model was in doubt about, for a hint."""
        if self.pattern_set is None:
            return Call("clew.patterns.review_photos", (), {"model": str(self.model), **settings})
        return self.pattern_set.call("review_photos", self.pattern_set.name, **settings)


def choose_model(
    name: str | None = None,
    *,
    model: "str | Path | PatternModel | None" = None,
    library: str | Path = LIBRARY,
) -> Chosen:
    """Find a model by its folder or by the name of a set; without either, that of the only set.
    Raises InputError if both are given, or if there is no trained model."""
    if model is not None and not isinstance(model, str | Path):
        return replace(choose_model(name, model=model.folder), loaded=model)
    if model is not None and name is not None:
        raise InputError(
            f'`model` "{model}" and the set "{name}" are different models: give only one of them.'
        )
    if model is not None:
        return _of_folder(as_path(model))
    return _of_set(PatternSet.open(name, Path(library), otherwise="a trained model with `model`"))


def _of_set(pattern_set: PatternSet) -> Chosen:
    model = pattern_set.latest_model()
    if model is None:
        started = pattern_set.all_runs()
        state = "has not finished training" if started else "is not trained yet"
        train = pattern_set.call("train", name=pattern_set.name)
        raise InputError(f'the set "{pattern_set.name}" {state}: run ', train, " first.")
    return Chosen(model=model, pattern_set=pattern_set, classes_folder=pattern_set.photos)


def _of_folder(model: Path) -> Chosen:
    if isinstance(model, UrlPath):
        return _at_url(model)
    if (model / SET_FILE).is_file():
        return _of_set(PatternSet.at(model))
    if not is_finished(model):
        raise InputError(_explain(model))
    runs = model.resolve().parent
    if runs.name == "runs" and (runs.parent / SET_FILE).is_file():
        own = PatternSet.at(runs.parent)
        return Chosen(model=model, pattern_set=own, classes_folder=own.photos)
    return Chosen(model=model, pattern_set=None, classes_folder=_trained_on(model))


def _at_url(model: UrlPath) -> Chosen:
    from clew.storage.working_copy import working_copy

    with working_copy(model) as here:
        if not is_finished(here):
            raise InputError(_explain(here))
        return Chosen(model=model, pattern_set=None, classes_folder=_trained_on(here))


def _trained_on(model: Path) -> Path | None:
    """The folder of photos that results.json names, if it still exists. If folders say which photos
    are for training, new ones go there."""
    data = read_results(model).get("data")
    if not isinstance(data, dict) or not Path(str(data.get("folder"))).is_dir():
        return None
    folder = Path(data["folder"])
    return _find_training_folder(folder) if data.get("split_folders") else folder


def find_classes_folder(folder: Path) -> Path:
    """The folder whose folders are the classes of new photos: `folder`, or its "train"."""
    try:
        has_splits = find_classes(folder, at_least=1).split_folders
    except InputError:  # there are no photos yet
        return folder
    return (_find_training_folder(folder) or folder / SPLITS[0]) if has_splits else folder


def _find_training_folder(folder: Path) -> Path | None:
    parts = (part for part in sorted(folder.iterdir()) if part.is_dir())
    names = ((SPLIT_FOLDERS.get(part.name.casefold()), part) for part in parts)
    return next((part for split, part in names if split == SPLITS[0]), None)


def _explain(model: Path) -> str:
    if not model.exists():
        return f'there is no model at "{model}": the folder does not exist. Check the path.'
    if not model.is_dir():
        return f'"{model}" is a file: give the folder that "clew patterns train" wrote.'
    if is_started(model):
        return (
            f'the training in "{model}" is not finished: run its "clew patterns train" command '
            "again to resume."
        )
    return (
        f'"{model}" contains no trained model: give the output folder of "clew patterns train", '
        "or the name of a set."
    )
