"""Prepares a review: whose photos, which questions, where the answers go, what comes next."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import filelock

from clew.base.errors import Call, InputError, StoreLockedError
from clew.patterns.identification.results import (
    IDENTIFIED_FILE,
    Identification,
    find_identified,
    find_newest,
    read_identified,
)
from clew.patterns.library.choose import Chosen, find_classes_folder
from clew.patterns.library.folders import read_results
from clew.patterns.photos.photo import natural_order
from clew.patterns.review.notes import NOTES_NAME, Notes
from clew.patterns.review.questions import Queue, make_queue
from clew.patterns.review.session import Review
from clew.patterns.review.shelf import Carrier, Shelf
from clew.storage.writing import lock_file


@dataclass(frozen=True, kw_only=True)
class ReviewConfig:
    """What to review. `identified` is an identified.json or its folder, by default the newest of
    the model or set that still has questions; `data` the folder with one folder per class that
    takes the photos, by default the training folder; `every` also asks about confident predictions,
    and about photos skipped before."""

    identified: Path | None = None
    data: Path | None = None
    every: bool = False
    move: bool = False


@contextmanager
def open_review(chosen: Chosen, config: ReviewConfig | None = None) -> Iterator[Review]:
    """Open the review and lock it against other processes.

    Raises InputError when nothing was identified yet or the folder for the photos is unknown,
    StoreLockedError.
    """
    config = config or ReviewConfig()
    home = chosen.home
    candidates = _find_identified(chosen, config)
    shelf = _open_shelf(chosen, config)
    with _only_one(home):
        notes = Notes(home / NOTES_NAME)
        carrier = Carrier(shelf, notes)
        carrier.finish()
        identification, queue = _choose(candidates, notes, every=config.every)
        yield Review(
            queue,
            carrier,
            _classes(identification, chosen, shelf),
            moves=config.move,
            next_call=_call_to_train(chosen, config),
            again_call=call_to_review(chosen, config),
        )


def _find_identified(chosen: Chosen, config: ReviewConfig) -> list[Path]:
    """What may be reviewed, the newest first."""
    path = config.identified
    if path is not None and not path.exists():
        raise InputError(
            f'there is no "{path}": give the output folder of "clew patterns identify".'
        )
    if path is not None:
        return [path / IDENTIFIED_FILE if path.is_dir() else path]
    found = find_identified(chosen.home)
    if not found:
        raise InputError(
            "there is nothing to review: no photos have been identified yet. Run ",
            chosen.call_to_identify(),
            " first.",
        )
    return found


def _choose(files: list[Path], notes: Notes, *, every: bool) -> tuple[Identification, Queue]:
    """The newest that still has questions; if none has, the newest."""
    opened = map(read_identified, files)
    asked = ((one, make_queue(one, notes, every=every)) for one in opened)
    newest = next(asked)
    return next((pair for pair in chain([newest], asked) if pair[1].questions), newest)


def _open_shelf(chosen: Chosen, config: ReviewConfig) -> Shelf:
    folder = chosen.classes_folder if config.data is None else find_classes_folder(config.data)
    if folder is None:
        raise InputError(
            f'the folder of photos that "{chosen.model}" was trained on no longer exists: set '
            "`data` to a folder to add the photos to, with one subfolder per class."
        )
    if not folder.is_dir():
        raise InputError(
            f'there is no folder "{folder}": give a folder with one subfolder per class.'
        )
    if chosen.pattern_set is not None and config.data is None:
        return Shelf(folder, chosen.pattern_set.add)
    return Shelf(folder)


def _classes(identification: Identification, chosen: Chosen, shelf: Shelf) -> list[str]:
    """The classes to choose from: those of the model, and those whose folders were added since."""
    trained = identification.settings.get("classes") or _results(chosen).get("classes") or []
    guessed = {label for photo in identification.photos for label, _ in photo.best}
    return sorted({*map(str, trained), *guessed, *shelf.classes()}, key=natural_order)


def _call_to_train(chosen: Chosen, config: ReviewConfig) -> Call:
    """The call that trains again from the last weights."""
    if chosen.pattern_set is not None and config.data is None:
        return chosen.pattern_set.call_to_train()
    trained_on = _results(chosen).get("data", {}).get("folder")
    folder = config.data or (Path(trained_on) if trained_on else chosen.classes_folder)
    out = _free_name(chosen.model)
    places = {"data": folder, "start_from": chosen.model, "out": out}
    return Call("clew.patterns.train", (), {name: str(path) for name, path in places.items()})


def call_to_review(chosen: Chosen, config: ReviewConfig) -> Call:
    """The call that asks the remaining questions, without identifying again."""
    newest = find_newest(chosen.home)
    is_newest = config.identified in (None, newest, newest and newest.parent)
    wishes: dict[str, object] = {
        "identified": None if is_newest else str(config.identified),
        "data": config.data and str(config.data),
        "move": config.move,
        "every": config.every,
    }
    return chosen.call_to_review({name: value for name, value in wishes.items() if value})


def _free_name(model: Path) -> Path:
    numbers = range(2, 10_000)
    names = (model.with_name(f"{model.name}-{number}") for number in numbers)
    return next(name for name in names if not name.exists())


def _results(chosen: Chosen) -> dict[str, Any]:
    return read_results(chosen.model)


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    try:
        with lock_file(home / ".review.lock", timeout_seconds=0):
            yield
    except filelock.Timeout:
        raise StoreLockedError(
            f'another review of "{home}" is running: finish that one first (q at the terminal, '
            '"Finish" on the page).'
        ) from None
