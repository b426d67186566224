"""The settings of `clew compare`: the data, the methods, and how the networks are trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args

from clew.base.errors import InputError
from clew.base.settings import check_numbers, check_positive
from clew.base.urls import is_url
from clew.hallucination.comparison.methods import choose_names, find_methods
from clew.hallucination.detectors.training.settings import (
    SAMPLES_FOLDER,
    TrainingSettings,
    TrainRunConfig,
)
from clew.hallucination.llm.embedded import Engine

KeepDetectors = Literal["best", "all", "none"]
_FEWEST_FOLDS = 3


@dataclass(frozen=True, kw_only=True)
class CompareConfig(TrainingSettings):
    """The settings of a comparison. `train_on` and `test_on` are folders that `clew preprocess`
    wrote: methods are fitted and chosen on the training and validation splits of each folder in
    `train_on`, and evaluated on each folder in `test_on`; usually both are the same folder. If both
    are the same several folders, each is tested by what is trained on the others;
    `pairs` adds each folder alone. With `union`, methods are fitted on all folders in `train_on`
    together. `by_set` does the same with the question sets in one folder;
    `folds` tests one folder fold by fold. `methods=None` runs all methods but those of other
    packages. With the engine "vllm", those that need more than it gives are excluded."""

    train_on: tuple[Path, ...]
    test_on: tuple[Path, ...]
    out: Path
    methods: tuple[str, ...] | None = None
    seeds: int = 5
    overwrite: bool = False
    keep_detectors: KeepDetectors = "best"
    keep_at_chance: bool = False
    engine: Engine = "clew"
    names: tuple[str, ...] = ()
    pairs: bool = True
    folds: int = 0
    by_set: bool = False
    union: bool = False

    def __post_init__(self) -> None:
        check_numbers(self)
        check_positive(self, "seeds")
        find_methods(self.methods)  # refuses unknown ones
        if self.keep_detectors not in get_args(KeepDetectors):
            raise InputError(
                f"choose from: {', '.join(get_args(KeepDetectors))}.",
                setting="keep_detectors",
                value=self.keep_detectors,
            )
        if not (self.train_on and self.test_on):
            raise InputError("there is no data to compare on: give `preprocessed_dir`.")
        if self.folds:
            self._check_folds()
        if self.by_set and (self.folds or len({*self.train_on, *self.test_on}) > 1):
            raise InputError(
                "it applies to the sets in one folder: give `preprocessed_dir` only.",
                setting="by_set",
                value=True,
            )

        if self.union and (self.folds or self.by_set or len({*self.train_on}) < 2):
            raise InputError(
                "it puts two or more folders together: give them with `train_on`, and what to "
                "evaluate on with `test_on`.",
                setting="union",
                value=True,
            )

    def _check_folds(self) -> None:
        if self.folds < _FEWEST_FOLDS:
            raise InputError(
                f"give {_FEWEST_FOLDS} or more: one is tested, one is used to choose, and the "
                "others to train; 0 uses the splits of the samples.",
                setting="folds",
                value=self.folds,
            )
        if len({*self.train_on, *self.test_on}) > 1:
            raise InputError(
                "folds are of one folder: give `preprocessed_dir` only.",
                setting="folds",
                value=self.folds,
            )

    @classmethod
    def after_training(cls, trained: TrainRunConfig) -> Self:
        """The comparison that follows a training, in the folder `compare` of its output: with the
        same settings but its own seeds, since all rows of a table must be produced in the same way.
        Raises InputError if a comparison is not possible, so call it before hours of training.
        """
        from clew.engine.torchrun import count_processes

        if trained.data_pattern is not None:
            raise InputError(
                '`compare` requires samples written by "clew preprocess", but '
                f'`data_pattern="{trained.data_pattern}"` matches traces: preprocess them and '
                "give `preprocessed_dir`."
            )
        if count_processes() > 1:
            raise InputError(
                f"`compare` runs in one process, but torchrun started {count_processes()}: omit "
                'it, and run "clew compare" separately afterwards.'
            )
        if is_url(trained.out):
            raise InputError(
                "`compare` writes into a folder on this machine: omit it, and run "
                '"clew compare" separately afterwards.',
                setting="out",
                value=trained.out,
            )
        folders = choose_folders(preprocessed_dir=trained.open_samples())
        return cls(
            train_on=folders[0],
            test_on=folders[1],
            out=trained.out / "compare",
            methods=choose_names(trained.networks),
            network=trained.network,
            loss=trained.loss,
            train=trained.train,
            request=trained.request,
            overwrite=trained.overwrite,
            keep_at_chance=trained.keep_at_chance,
        )

    @property
    def seed_numbers(self) -> range:
        return range(self.train.seed, self.train.seed + self.seeds)


def choose_folders(
    *,
    preprocessed_dir: Path | None = None,
    train_on: Sequence[Path] = (),
    test_on: Sequence[Path] = (),
    stores: Sequence[Path] = (),
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The folders to fit on and the folders to evaluate on: `preprocessed_dir` for both, `train_on`
    and `test_on`, or `stores` for both. Raises InputError if that is ambiguous."""
    ways = {
        "`preprocessed_dir`": preprocessed_dir is not None,
        "`train_on` / `test_on`": bool(train_on or test_on),
        "`stores`": bool(stores),
    }
    given = [name for name, is_given in ways.items() if is_given]
    if len(given) > 1:
        raise InputError(f"{given[0]} and {given[1]} cannot be combined: use only one of them.")
    if bool(train_on) != bool(test_on):
        missing = "`test_on`" if train_on else "`train_on`"
        raise InputError(f"{missing} is missing: transfer requires both `train_on` and `test_on`.")
    if stores:
        if len({folder.resolve() for folder in stores}) < 2:
            raise InputError(
                "give two or more different folders.", setting="stores", value=stores[0]
            )
        return tuple(stores), tuple(stores)
    if train_on:
        return tuple(train_on), tuple(test_on)
    folder = preprocessed_dir or SAMPLES_FOLDER
    return (folder,), (folder,)
