"""The output folder of a training, and what of an earlier training in it may be resumed or
replaced. What can be refused is refused before anything is written."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clew.engine.folders import BEST, LAST, clear_run, make_folder, only_one
from clew.engine.model_files import read_about
from clew.errors import InputError, SettingsMismatchError
from clew.patterns.report import REPORT_FILE
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
from clew.patterns.training.results import refuse_other_results
from clew.settings import START_OVER

# What is only true of a finished run. results.json goes last: it tells whose the others are.
_FOLLOWS = (PREDICTIONS_FILE, REPORT_FILE, RESULTS)
_TABLES = (SPLITS_FILE, EARLIER_FILE, EXCLUDED_FILE, OLD_EXCLUDED_FILE)


class RunFolder:
    """A folder to train into. With `overwrite`, what an earlier training left is replaced."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self.path, self._overwrite = path, overwrite

    @property
    def is_begun(self) -> bool:
        """Whether there is a training to resume."""
        return (self.path / LAST).exists()

    @contextmanager
    def gone_if_refused(self) -> Iterator[None]:
        """A set would take an empty folder for a training that was begun."""
        was_there = self.path.exists()
        try:
            yield
        except InputError:
            if not was_there:
                with suppress(OSError):  # something is in it
                    self.path.rmdir()
            raise

    def make(self, data: Path) -> None:
        """Raises InputError for a folder that cannot be, or lies among the photos in `data`,
        StoreError for one with the results of something else, SettingsMismatchError for one with a
        model whose training cannot be resumed."""
        if self.path.resolve().is_relative_to(data.resolve()):
            raise InputError(
                "it lies in the folder of the photos, where its pictures would be taken for "
                "photos. Choose one outside.",
                setting="out",
                value=self.path,
            )
        refuse_other_results(self.path, "test_accuracy", "best_epoch")  # no evaluation's
        self._refuse_lost_run()
        make_folder(self.path)

    def refuse_other_size(self, size: int) -> None:
        """Raises SettingsMismatchError when a run was begun in the folder with another image
        size."""
        if self._overwrite or not self.is_begun:
            return
        begun = read_about(self.path / LAST).get("settings", {}).get("image_size")
        if begun != size:
            raise SettingsMismatchError(
                f'the run in "{self.path}" was started with an image size of {begun}, now it is '
                f"{size}: give `image_size={begun}` to resume it, or choose another `out`. "
                f"{START_OVER}"
            )

    def begin(self, tables: RunTables, data: Path) -> None:
        """Write the tables of a run that begins: who looks at it sees what was found before it is
        trained. Raises SettingsMismatchError when a run was begun with other photos."""
        with only_one(self.path):  # a run under way keeps its tables
            if self._overwrite:
                clear_run(self.path, *_FOLLOWS, *_TABLES)
            self._refuse_other_photos(tables, data)
            if self.is_begun and (self.path / SPLITS_FILE).exists():
                return
            if not self.is_begun and (self.path / RESULTS).exists():  # of a run that is gone
                for name in _FOLLOWS:
                    (self.path / name).unlink(missing_ok=True)
            tables.write(self.path)

    def _refuse_lost_run(self) -> None:
        """A model is not trained over because what its training would resume from was tidied
        away."""
        if (self.path / BEST).exists() and not self.is_begun and not self._overwrite:
            raise SettingsMismatchError(
                f'"{self.path}" holds a model ({BEST}), but not what its training would resume '
                f'from ({LAST}): choose another `out` (`start_from="{self.path}"` begins '
                f"with its weights). {START_OVER}"
            )

    def _refuse_other_photos(self, tables: RunTables, data: Path) -> None:
        if not self.is_begun or not (self.path / SPLITS_FILE).exists():
            return
        changes = describe_changes(read_splits(self.path), tables.splits)
        if changes:
            raise SettingsMismatchError(
                f'the photos in "{data}" are not those that "{self.path}" was started with: '
                f"{changes}. To train with them, beginning with what was learnt, give another "
                f'`out` and `start_from="{self.path}"`. {START_OVER}'
            )
