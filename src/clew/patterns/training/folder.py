"""The output folder of a run, and which parts of an earlier run in it may be resumed or replaced.
Whatever can be refused is refused before anything is written."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clew.base.errors import InputError, SettingsMismatchError
from clew.base.settings import START_OVER
from clew.engine.checkpoint import read_settings
from clew.engine.folders import BEST, LAST, clear_run, make_folder, only_one
from clew.patterns.features import TUNING_FILE
from clew.patterns.report import REPORT_FILE
from clew.patterns.trained.map_files import MAP_FILE, THUMBNAILS_FILE
from clew.patterns.trained.model import RESULTS
from clew.patterns.trained.tables import (
    EARLIER_FILE,
    EXCLUDED_FILE,
    OLD_EXCLUDED_FILE,
    PREDICTIONS_FILE,
    SPLITS_FILE,
    RunTables,
    describe_changes,
    read_splits,
)
from clew.patterns.trained.unknown import UNKNOWN_FILE
from clew.patterns.training.results import refuse_other_results
from clew.storage.ownership import OWN_FILE

# Files that are only valid for a finished run. results.json is deleted last: it identifies the
# others.
_FOLLOWS = (PREDICTIONS_FILE, REPORT_FILE, UNKNOWN_FILE, MAP_FILE, THUMBNAILS_FILE, RESULTS)
_TABLES = (SPLITS_FILE, EARLIER_FILE, EXCLUDED_FILE, OLD_EXCLUDED_FILE)


class RunFolder:
    """A folder to train into. With `overwrite`, what an earlier run left is replaced."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self.path, self._overwrite = path, overwrite

    @property
    def is_started(self) -> bool:
        """Whether there is a run to resume."""
        return (self.path / LAST).exists()

    def read_started(self) -> dict[str, Any] | None:
        """The settings of the run to resume; None if there is none, or if it is replaced."""
        if self._overwrite or not self.is_started:
            return None
        return read_settings(self.path)

    @contextmanager
    def gone_if_refused(self) -> Iterator[None]:
        """Remove the folder again if the run is refused: a set would take an empty folder for a
        started run."""
        was_there = self.path.is_dir()
        try:
            yield
        except InputError:
            if not was_there:
                (self.path / OWN_FILE).unlink(missing_ok=True)
                with suppress(OSError):  # it is not empty
                    self.path.rmdir()
            raise

    def make(self, data: Path) -> None:
        """Create the folder. Raises InputError if it is invalid or inside the photos in `data`,
        StoreError for one with the results of something else, SettingsMismatchError for one with a
        model whose training cannot be resumed."""
        if self.path.resolve().is_relative_to(data.resolve()):
            raise InputError(
                "it is inside the photo folder, where its images would be mistaken for photos. "
                "Choose a folder outside it.",
                setting="out",
                value=self.path,
            )
        refuse_other_results(self.path, "test_accuracy", "best_epoch")  # not an evaluation's
        self._refuse_lost_run()
        names = (*_FOLLOWS, *_TABLES, TUNING_FILE)
        make_folder(self.path, *names, command="patterns train")

    def refuse_other_size(self, size: int) -> None:
        """Raises SettingsMismatchError if a run was started in the folder with another image
        size."""
        settings = self.read_started()
        if settings is None:
            return
        started = settings.get("image_size")
        if started != size:
            raise SettingsMismatchError(
                f'the run in "{self.path}" was started with an image size of {started}, but now '
                f"it is {size}: give `image_size={started}` to resume it, or choose another "
                f"`out`. {START_OVER}"
            )

    def begin(self, tables: RunTables, data: Path) -> None:
        """Writes the tables of a new run, so that what was found can be seen before training ends.
        Raises SettingsMismatchError if a run was started with other photos."""
        with only_one(self.path):  # a run in progress keeps its tables
            if self._overwrite:
                clear_run(self.path, *_FOLLOWS, *_TABLES, TUNING_FILE)
            self._refuse_other_photos(tables, data)
            if self.is_started and (self.path / SPLITS_FILE).exists():
                return
            if (
                not self.is_started and (self.path / RESULTS).exists()
            ):  # of a run that no longer exists
                for name in _FOLLOWS:
                    (self.path / name).unlink(missing_ok=True)
            tables.write(self.path)

    def _refuse_lost_run(self) -> None:
        """Refuse to overwrite a model whose checkpoint was deleted."""
        if (self.path / BEST).exists() and not self.is_started and not self._overwrite:
            raise SettingsMismatchError(
                f'"{self.path}" contains a model ({BEST}), but not the checkpoint to resume its '
                f'training from ({LAST}): choose another `out` (with `start_from="{self.path}"` '
                f"to start from its weights). {START_OVER}"
            )

    def _refuse_other_photos(self, tables: RunTables, data: Path) -> None:
        if not self.is_started or not (self.path / SPLITS_FILE).exists():
            return
        changes = describe_changes(read_splits(self.path), tables.splits)
        if changes:
            raise SettingsMismatchError(
                f'the photos in "{data}" differ from those that "{self.path}" was started with: '
                f"{changes}. To train on them, starting from its weights, give another `out` and "
                f'`start_from="{self.path}"`. {START_OVER}'
            )
