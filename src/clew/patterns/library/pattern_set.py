"""A set of patterns: one folder with its photos, its trained models and what was done with them."""

import logging
import os
import re
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from clew.base.errors import Call, InputError, StoreError
from clew.base.typed_json import Bounds, read_as, to_json
from clew.patterns.library.journal import Journal, digest_picture
from clew.patterns.library.placing import (
    check_class_name,
    check_photo_name,
    check_set_name,
    class_folder,
    only_one,
    put_photo,
)
from clew.patterns.photos.find import find_classes, walk
from clew.patterns.photos.opening import PhotoError
from clew.patterns.photos.photo import Photo, natural_order
from clew.patterns.results_file import RESULTS, read_results_file
from clew.patterns.settings import LIBRARY
from clew.storage.reading import read_json
from clew.storage.writing import replace_file
from clew.version import __version__

logger = logging.getLogger(__name__)

SET_FILE = "set.json"
_FORMAT = "clew patterns"
_MOST_NAMED = 20
_RUN = re.compile(r"\d{3,}")
_EXCLUDED = ("excluded.csv", "left_out.csv")  # the second in runs of earlier versions
_WAIT_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Change:
    """Photos that a run did not see, and those it saw that no longer exist."""

    new: int
    gone: int

    def __bool__(self) -> bool:
        return self.new + self.gone > 0


@dataclass(frozen=True, kw_only=True)
class PatternSet:
    """A named set of photos with the models trained on them. `folder` is its folder, `photos` the
    folder with one folder per class, `runs` the folder of training runs, `cache` holds what can be
    created again."""

    name: str
    folder: Path

    @property
    def photos(self) -> Path:
        return self.folder / "photos"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def library(self) -> Path:
        return self.folder.parent

    @cached_property
    def _journal(self) -> Journal:
        """The journal, kept open between photos: that of many thousands of photos takes a while to
        read."""
        return Journal(self.folder)

    @classmethod
    def create(cls, name: str, library: Path = LIBRARY) -> "PatternSet":
        """Create an empty set. Raises InputError if the name is invalid or taken."""
        name = check_set_name(name)
        folder = library / name
        if (folder / SET_FILE).exists():
            raise InputError(
                f'there is already a set "{name}" in "{library}": choose another name, or add '
                "photos to it with ",
                cls(name=name, folder=folder).call("import_photos", name, "DIR"),
                ".",
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(
                f'"{folder}" already exists and is not a set: choose another name or another '
                "`library`."
            )
        try:
            (folder / "photos").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f'the folder "{folder / "photos"}" cannot be created ({error.strerror}): choose '
                "another `library`."
            ) from None
        created = datetime.now().astimezone().isoformat(timespec="seconds")
        about = {"format": _FORMAT, "version": 1, "name": name, "created": created}
        text = to_json(about | {"clew": __version__}, indent=1) + "\n"
        replace_file(folder / SET_FILE, text.encode())
        return cls(name=name, folder=folder)

    @classmethod
    def open(
        cls, name: str | None = None, library: Path = LIBRARY, *, otherwise: str = ""
    ) -> "PatternSet":
        """Open the set with this name, or without a name the only set.

        Raises InputError if there is none; `otherwise` says in the message what could be given
        instead of a name.
        """
        sets = cls.all(library)
        folder = sets[0].folder if len(sets) == 1 else None
        if name is not None:
            folder = library / check_set_name(name)
        if folder is None or not (folder / SET_FILE).is_file():
            raise _choose_another(library, name, sets, otherwise)
        return cls.at(folder)

    @classmethod
    def at(cls, folder: Path) -> "PatternSet":
        """The set in a folder that has a set.json; raises StoreError when that is damaged."""
        read_about(folder)
        # The folder was given as "." or "..".
        folder = folder if folder.name.strip(".") else folder.resolve()
        return cls(name=folder.name, folder=folder)  # a renamed folder gives the set its new name

    @classmethod
    def all(cls, library: Path = LIBRARY) -> list["PatternSet"]:
        """All sets of a library, by name; none when there is no such folder."""
        if not library.is_dir():
            return []
        files = sorted(library.glob(f"*/{SET_FILE}"), key=lambda file: file.parent.name.casefold())
        return [cls(name=file.parent.name, folder=file.parent) for file in files]

    def created(self) -> str:
        return read_about(self.folder).get("created", "")

    def find_photos(self) -> tuple[Photo, ...]:
        """The photos of all classes; none in a new set."""
        if not self.photos.is_dir() or not walk(self.photos).photos:
            return ()
        return find_classes(self.photos, at_least=1).photos

    def all_runs(self) -> list[Path]:
        """Training runs, oldest first, finished or not."""
        found = self.runs.iterdir() if self.runs.is_dir() else ()
        runs = [run for run in found if _RUN.fullmatch(run.name) and run.is_dir()]
        return sorted(runs, key=lambda run: int(run.name))

    def latest_model(self) -> Path | None:
        """The newest run that was finished."""
        return next(filter(is_finished, reversed(self.all_runs())), None)

    def unchanged_model(self) -> Path | None:
        """The newest run, if it was finished and no photo was added or removed since."""
        model = self.latest_model()
        is_newest = model is not None and model == self.all_runs()[-1]
        return model if model and is_newest and not self.changed_since(model) else None

    def run_folder(self) -> tuple[Path, Path | None]:
        """Where the next training goes, and the model whose weights it starts from.

        An unfinished newest run is resumed, unless photos were added or removed since.
        """
        runs, start_from = self.all_runs(), self.latest_model()
        if runs and not is_finished(runs[-1]) and not self.changed_since(runs[-1]):
            return runs[-1], start_from
        return self.runs / f"{int(runs[-1].name) + 1 if runs else 1:03d}", start_from

    def changed_since(self, run: Path, photos: tuple[Photo, ...] | None = None) -> Change | None:
        """How many photos were added and removed since a run looked at them; None if the run
        stopped before that."""
        if not (run / "splits.csv").is_file():
            return None
        names = {photo.name for photo in (self.find_photos() if photos is None else photos)}
        used = _read_names(run / "splits.csv")
        excluded = {name for file in _EXCLUDED for name in _read_names(run / file)}
        return Change(new=len(names - used - excluded), gone=len(used - names))

    def add(self, path: Path, label: str, *, move: bool = False) -> Path:
        """Puts a photo into a class, under a free name; returns the photo in the set.

        An image that its class already has is not added twice: that one is returned. Raises
        InputError for an invalid class name, and for an image of another class.
        """
        label = check_class_name(label)
        check_photo_name(path)
        try:
            digest = digest_picture(path)
        except PhotoError as error:
            raise InputError(f'"{path}" cannot be added to "{label}": {error.reason}') from None
        with set_lock(self, wait_seconds=_WAIT_SECONDS):
            self._journal.read_on()
            same = self._journal.find(digest)
            if same is None:
                target = put_photo(path, class_folder(self.photos, label), move=move)
                self._journal.add(target, digest)
                return target
        if same.label != label:
            raise InputError(
                f'"{path}" cannot be added to "{label}": the same image is in "{same.label}", '
                f'as "{self.photos / same.photo}". Remove it there first.'
            )
        logger.info('"%s" already exists, as %s', path, same.photo)
        return self.photos / same.photo

    def note_move(self, before: str, after: str | None) -> None:
        """Record that a photo moved inside the folder of photos, or, with None, out of it."""
        with set_lock(self, wait_seconds=_WAIT_SECONDS):
            self._journal.read_on()
            self._journal.note_move(before, after)

    def call(self, function: str, *words: object, **settings: object) -> Call:
        """The call of a function of `clew.patterns` with this library, for a hint."""
        return Call(f"clew.patterns.{function}", words, settings | library_settings(self.library))


def set_lock(pattern_set: PatternSet, *, wait_seconds: float = 0.0) -> AbstractContextManager[None]:
    """Hold the lock for adding photos; raises StoreLockedError if another process has it."""
    message = (
        f'another process is adding photos to the set "{pattern_set.name}": wait until it '
        "finishes, then run the same command again."
    )
    return only_one(pattern_set.folder / ".import.lock", message, wait_seconds=wait_seconds)


def read_about(folder: Path) -> dict[str, Any]:
    """What set.json says; raises StoreError when it is damaged or of another kind."""
    path = folder / SET_FILE
    try:
        about = read_as(dict[str, Any], read_json(path))
        read_as(Annotated[str, Bounds(most=100)], about.get("created", ""), "created")
    except (OSError, ValueError) as error:
        about = {}
        logger.debug("%s: %s", path, error)
    if about.get("format") != _FORMAT:
        raise StoreError(
            f'"{path}" is damaged or was not written by clew: restore it from a backup. The '
            f'photos in "{folder / "photos"}" do not depend on it; a new set can import them.'
        )
    return about


def _choose_another(
    library: Path, name: str | None, sets: list[PatternSet], otherwise: str
) -> InputError:
    """There is no set of this name, or none or several to choose from."""
    create = "clew.patterns.create_set"
    names = ", ".join(f'"{one.name}"' for one in sets[:_MOST_NAMED])
    if len(sets) > _MOST_NAMED:
        names += f" and {len(sets) - _MOST_NAMED:,} more"
    more = f" Or give {otherwise}." if otherwise and name is None else ""
    if not sets:
        what = "contains no sets" if library.is_dir() else "does not exist"
        return InputError(
            f'there is no set "{name}": ' if name else "",
            f'the library "{library}" {what}: create a set with ',
            Call(create, ("NAME",), library_settings(library)),
            f", or set `library` to the folder that contains your sets.{more}",
        )
    if name is None:
        return InputError(
            f'there are {len(sets):,} sets in "{library}": choose one of {names}.{more}'
        )
    return InputError(
        f'there is no set "{name}" in "{library}", only {names}: choose one of these, or create it '
        "with ",
        Call(create, (name,), library_settings(library)),
        ".",
    )


MIN_PHOTOS = 3  # per class: one for each split


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One training run; metrics are None while it is not finished."""

    folder: Path
    is_finished: bool
    finished: str | None = None
    photos: int | None = None
    test_accuracy: float | None = None
    test_accuracy_ci: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class SetSummary:
    """A set as it is now. `change` is what its model has not seen; None without a model."""

    name: str
    folder: Path
    created: str
    classes: dict[str, int]
    bytes: int
    runs: tuple[RunSummary, ...]
    change: Change | None

    @property
    def photos(self) -> int:
        return sum(self.classes.values())

    @property
    def model(self) -> RunSummary | None:
        return next((run for run in reversed(self.runs) if run.is_finished), None)

    def small_classes(self) -> list[str]:
        """Classes with too few photos to train and test on."""
        return [label for label, photos in self.classes.items() if photos < MIN_PHOTOS]


def summarize_set(pattern_set: PatternSet) -> SetSummary:
    """Summarize a set. Raises StoreError if its set.json is damaged."""
    photos = pattern_set.find_photos()
    counts = Counter(photo.label for photo in photos if photo.label is not None)
    model = pattern_set.latest_model()
    return SetSummary(
        name=pattern_set.name,
        folder=pattern_set.folder,
        created=pattern_set.created(),
        classes={label: counts[label] for label in sorted(counts, key=natural_order)},
        bytes=sum(_size(photo.path) for photo in photos),
        runs=tuple(map(_summarize_run, pattern_set.all_runs())),
        change=None if model is None else pattern_set.changed_since(model, photos),
    )


def summarize_library(library: Path = LIBRARY) -> tuple[list[SetSummary], list[StoreError]]:
    """All sets, by name; a damaged one does not hide the others."""
    summaries, damaged = [], []
    for one in PatternSet.all(library):
        try:
            summaries.append(summarize_set(one))
        except StoreError as error:
            damaged.append(error)
    return summaries, damaged


def _summarize_run(run: Path) -> RunSummary:
    if not is_finished(run):
        return RunSummary(folder=run, is_finished=False)
    results = read_results(run)
    interval = results.get("test_accuracy_ci")
    return RunSummary(
        folder=run,
        is_finished=True,
        finished=datetime.fromtimestamp((run / RESULTS).stat().st_mtime)
        .astimezone()
        .isoformat(timespec="seconds"),
        photos=(results.get("data") or {}).get("photos"),
        test_accuracy=results.get("test_accuracy"),
        test_accuracy_ci=tuple(interval) if interval else None,
    )


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0  # just deleted


def library_settings(library: Path) -> dict[str, object]:
    """For a `Call`: the library is named if it is not the default."""
    return {} if library == LIBRARY else {"library": str(library)}


def is_finished(run: Path) -> bool:
    """Whether a training run finished in this folder: then it is a model."""
    return (run / RESULTS).is_file() and (run / "best.safetensors").is_file()


def is_started(run: Path) -> bool:
    """Whether a training run has written weights."""
    return any((run / name).is_file() for name in ("best.safetensors", "last.safetensors"))


def read_results(run: Path) -> dict[str, Any]:
    """What results.json holds, of a folder or at a URL; empty if it is missing or damaged."""
    from clew.storage.working_copy import fetched

    try:
        with fetched(run, RESULTS) as path:
            return read_results_file(path)
    except (OSError, ValueError):
        return {}


def _read_names(path: Path) -> set[str]:
    from clew.storage.text_files import read_csv

    try:
        return {row["name"] for row in read_csv(path) if row.get("name")}
    except FileNotFoundError:
        return set()
    except ValueError as error:
        raise StoreError(
            f'"{path}" cannot be read ({error}): delete its folder and train again.'
        ) from None
