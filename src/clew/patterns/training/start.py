"""What a run starts from: its folder, with what may be resumed or replaced there, the weights of an
earlier run, the network, and the photos, decoded and split. Whatever can be refused is refused
before anything is written."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from clew.base.errors import InputError, SettingsMismatchError
from clew.base.progress import Note, Reporter, StepStarted, report_work
from clew.base.settings import START_OVER
from clew.engine.checkpoint import read_settings
from clew.engine.folders import BEST, LAST, clear_run, make_folder, only_one
from clew.engine.model_files import read_model, refuse_non_finite
from clew.engine.plan import look_at_machine
from clew.engine.torchrun import count_processes
from clew.patterns.cache.build import CachedPhotos, cache_photos, choose_size
from clew.patterns.features.duplicates import find_duplicates, read_small
from clew.patterns.networks import LITE0, build_network, check_network, usual_network
from clew.patterns.networks.lite0 import pretrained_lite0
from clew.patterns.photos import SPLITS, Fault, PhotoFolder, assign_splits, group_copies
from clew.patterns.report.page import REPORT_FILE
from clew.patterns.results_file import RESULTS, refuse_other_results
from clew.patterns.trained.model import PREFIX, read_model_settings
from clew.patterns.trained.tables import (
    EARLIER_FILE,
    EXCLUDED_FILE,
    MAP_FILE,
    OLD_EXCLUDED_FILE,
    PREDICTIONS_FILE,
    SPLITS_FILE,
    THUMBNAILS_FILE,
    SplitRow,
    describe_changes,
    read_known_splits,
    read_splits,
    write_earlier_splits,
    write_excluded,
    write_splits,
)
from clew.patterns.trained.unknown import UNKNOWN_FILE
from clew.patterns.training.config import USUAL_MINUTES, PatternsConfig, TrainingChoice
from clew.storage.ownership import OWN_FILE
from clew.storage.reading import hash_file, hash_text

_HASH_LETTERS = 16
# The checkpoint of training on features, in earlier versions.
_OLD_TUNING_FILE = "tuning.safetensors"


# Finding near duplicates takes a core some milliseconds per photo.
_MOST_COMPARED = 20_000
_TABLES = (SPLITS_FILE, EARLIER_FILE, EXCLUDED_FILE, OLD_EXCLUDED_FILE)


# Files that are only valid for a finished run. results.json is deleted last: it identifies the
# others.
_FOLLOWS = (PREDICTIONS_FILE, REPORT_FILE, UNKNOWN_FILE, MAP_FILE, THUMBNAILS_FILE, RESULTS)


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
    def removed_if_refused(self) -> Iterator[None]:
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
        names = (*_FOLLOWS, *_TABLES, _OLD_TUNING_FILE)
        make_folder(self.path, *names, command="patterns train")

    def read_splits(self) -> dict[str, str]:
        """The splits of the run to resume, by digest."""
        if self.read_started() is None or not (self.path / SPLITS_FILE).exists():
            return {}
        return {row.digest: row.split for row in read_splits(self.path)}

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

    def begin(self, photos: "TrainingPhotos", data: Path) -> None:
        """Writes the tables of a new run, so that what was found can be seen before training ends.
        Raises SettingsMismatchError if a run was started with other photos."""
        with only_one(self.path):  # a run in progress keeps its tables
            if self._overwrite:
                clear_run(self.path, *_FOLLOWS, *_TABLES, _OLD_TUNING_FILE)
            self._refuse_other_photos(photos, data)
            if self.is_started and (self.path / SPLITS_FILE).exists():
                return
            if (
                not self.is_started and (self.path / RESULTS).exists()
            ):  # of a run that no longer exists
                for name in _FOLLOWS:
                    (self.path / name).unlink(missing_ok=True)
            photos.write_tables(self.path)

    def _refuse_lost_run(self) -> None:
        """Refuse to overwrite a model whose checkpoint was deleted."""
        if (self.path / BEST).exists() and not self.is_started and not self._overwrite:
            raise SettingsMismatchError(
                f'"{self.path}" contains a model ({BEST}), but not the checkpoint to resume its '
                f'training from ({LAST}): choose another `out` (with `start_from="{self.path}"` '
                f"to start from its weights). {START_OVER}"
            )

    def _refuse_other_photos(self, photos: "TrainingPhotos", data: Path) -> None:
        if not self.is_started or not (self.path / SPLITS_FILE).exists():
            return
        changes = describe_changes(read_splits(self.path), photos.split_rows())
        if changes:
            raise SettingsMismatchError(
                f'the photos in "{data}" differ from those that "{self.path}" was started with: '
                f"{changes}. To train on them, starting from its weights, give another `out` and "
                f'`start_from="{self.path}"`. {START_OVER}'
            )


@dataclass(frozen=True, kw_only=True)
class Start:
    """An earlier run; `digest` changes with any of its weights, `splits` are those of its photos,
    and of those of the runs before it, by digest."""

    folder: Path
    network: str
    image_size: int
    classes: tuple[str, ...]
    digest: str
    splits: dict[str, str]

    def refuse_other(self, **wanted: Any) -> None:
        """Raises InputError for a `network` or an `image_size` that its weights do not fit; None
        accepts any."""
        for name, value in wanted.items():
            if value is not None and value != getattr(self, name):
                raise InputError(
                    f'the weights in "{self.folder}" were trained with {name} '
                    f"{getattr(self, name)}. Omit `{name}`, or start from scratch (without "
                    "`start_from`; for a set, with `overwrite=True`).",
                    setting=name,
                    value=value,
                )

    def load_into(self, network: nn.Module, classes: tuple[str, ...]) -> None:
        """Load the starting weights. Known classes keep theirs; new ones keep the network's initial
        weights. Raises StoreError for weights of another clew version's network, or damaged ones.
        """
        saved = read_model(self.folder / BEST)
        with torch.device("meta"):
            own = build_network(self.network, classes=len(self.classes), image_size=self.image_size)
        saved.check(own, name=self.network, prefix=PREFIX)
        weights = network.state_dict()
        heads = find_head(self.network, self.image_size)
        tensors = saved.read(f"{PREFIX}{name}" for name in weights)
        for name, fresh in weights.items():
            trained = tensors[f"{PREFIX}{name}"]
            weights[name] = self._match(fresh, trained, classes) if name in heads else trained
        network.load_state_dict(weights)
        refuse_non_finite(saved.path, network)

    def _match(self, fresh: Tensor, trained: Tensor, classes: tuple[str, ...]) -> Tensor:
        places = {name: place for place, name in enumerate(self.classes)}
        matched = fresh.clone()
        for row, name in enumerate(classes):
            if name in places:
                matched[row] = trained[places[name]]
        return matched


def open_start(folder: Path) -> Start:
    """Open an earlier run to start from. Raises StoreError if the folder holds no finished run."""
    settings = read_model_settings(folder)
    return Start(
        folder=folder,
        network=settings["network"],
        image_size=settings["image_size"],
        classes=tuple(settings["classes"]),
        digest=hash_file(folder / BEST)[:_HASH_LETTERS],
        splits=read_known_splits(folder),
    )


def find_head(network: str, image_size: int) -> set[str]:
    """The names of the weights with one row per class: those whose shape depends on their
    number."""
    with torch.device("meta"):
        few, more = (
            build_network(network, classes=count, image_size=image_size).state_dict()
            for count in (2, 3)
        )
    return {name for name, value in few.items() if value.shape != more[name].shape}


@dataclass(frozen=True, kw_only=True)
class NetworkChoice:
    """`is_fine_tuned` says whether its body was trained before, on other photos or in an earlier
    run: then it learns more slowly than its classifier. With `minutes` it is not trained by the
    engine, but on features, in about this time."""

    name: str
    reason: str
    pretrained: bool = False
    is_fine_tuned: bool = False
    minutes: float | None = None


def choose_network(
    config: PatternsConfig,
    start: Start | None,
    folder: RunFolder,
    *,
    on_gpu: bool,
    reporter: Reporter,
) -> NetworkChoice:
    """The network and its starting weights. Pretrained weights are downloaded here; where they are
    the default and cannot be had, training starts from scratch, and a Note says why. Raises
    InputError if a requested network cannot be built."""
    if config.epochs is not None and config.minutes is not None:
        reporter(Note("`minutes` is not used: the number of `epochs` is given"))
    started = folder.read_started()
    is_quick = not on_gpu and count_processes() == 1
    if started is not None:  # it stays what it is, even if it is resumed on another machine
        is_quick = started.get("minutes") is not None
    chosen = _choose(config, start, started or {}, on_gpu=on_gpu, reporter=reporter)
    if not is_quick or not chosen.is_fine_tuned or config.epochs is not None:
        return chosen
    minutes = USUAL_MINUTES if config.minutes is None else config.minutes
    return replace(chosen, minutes=minutes)


def _choose(
    config: PatternsConfig,
    start: Start | None,
    started: dict[str, Any],
    *,
    on_gpu: bool,
    reporter: Reporter,
) -> NetworkChoice:
    if start is not None:
        start.refuse_other(network=config.network, image_size=config.image_size)
        reason = "from the weights that it starts from"
        is_fine_tuned = start.network == LITE0
        return NetworkChoice(name=start.network, reason=reason, is_fine_tuned=is_fine_tuned)
    is_free = not (config.network or config.from_scratch or config.pretrained)
    if is_free and isinstance(name := started.get("network"), str):
        # Whatever the default was when the run was started.
        return _choice(name, "as when the run was started", bool(started.get("pretrained")))
    if config.network is not None:
        pretrained = not config.from_scratch if config.network == LITE0 else config.pretrained
        check_network(config.network, pretrained=pretrained)
        if config.network == LITE0 and pretrained:
            pretrained_lite0()
        return _choice(config.network, "as requested", pretrained)
    if not config.from_scratch:
        try:
            pretrained_lite0()
        except InputError as error:
            reporter(Note(f"training from scratch: {error}"))
        else:
            return _choice(LITE0, "pretrained on ImageNet", True)
    name, reason = usual_network(on_gpu=on_gpu)
    return _choice(name, f"from scratch: {reason}", False)


def _choice(name: str, reason: str, pretrained: bool) -> NetworkChoice:
    is_fine_tuned = pretrained and name == LITE0
    return NetworkChoice(
        name=name, reason=reason, pretrained=pretrained, is_fine_tuned=is_fine_tuned
    )


@dataclass(frozen=True, kw_only=True)
class TrainingPhotos:
    """The usable photos, each with its class (an index into `classes`) and its split (in
    SPLITS)."""

    folder: PhotoFolder
    cached: CachedPhotos
    size: TrainingChoice
    classes: tuple[str, ...]
    labels: Int64[np.ndarray, " photos"]
    splits: Int64[np.ndarray, " photos"]
    # Test photos that are near duplicates of training photos.
    copies_in_test: int
    # By digest, of the runs whose weights this one starts from: photos that are not here, and test
    # photos that those runs were trained on.
    earlier: dict[str, str]

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (*self.folder.faults, *self.cached.faults)

    def split_rows(self) -> list[SplitRow]:
        """The split of every photo, as in splits.csv."""
        found = zip(self.cached.photos, self.splits.tolist(), self.cached.digests, strict=True)
        return [
            SplitRow(name=photo.name, label=photo.label or "", split=SPLITS[split], digest=digest)
            for photo, split, digest in found
        ]

    def write_tables(self, folder: Path) -> None:
        """Write what was found, for people and for later evaluation."""
        write_excluded(folder, self.faults)
        write_splits(folder, self.split_rows())
        write_earlier_splits(folder, self.earlier)

    def count_seen_before(self) -> int:
        """Test photos, according to their folders, that the starting weights were trained on: they
        make the test accuracy too high."""
        return sum(digest in self.earlier for digest in self.cached.digests)

    def places(self, split: str) -> Int64[np.ndarray, " photos"]:
        """Indices of a split's photos among all, in the order of their names."""
        return np.flatnonzero(self.splits == SPLITS.index(split))

    def count_classes(self, split: str) -> list[int]:
        """Photos per class."""
        labels = self.labels[self.places(split)]
        return np.bincount(labels, minlength=len(self.classes)).tolist()

    def describe(self) -> dict[str, Any]:
        """The photos as described in results.json."""
        return {
            "folder": str(self.folder.root),
            "photos": len(self.cached.photos),
            "excluded": dict(Counter(fault.kind for fault in self.faults).most_common()),
            "other_files": self.folder.other_files,
            "splits": {split: len(self.places(split)) for split in SPLITS},
            "test_seen_before": self.count_seen_before(),
            "test_near_duplicates": self.copies_in_test,
            "split_folders": self.folder.split_folders,
        }

    def identify(self) -> dict[str, Any]:
        """What identifies these photos: images, classes and splits, not their paths."""
        splits = [SPLITS[split] for split in self.splits.tolist()]
        labels = [self.classes[label] for label in self.labels.tolist()]
        lines = sorted(zip(self.cached.digests, labels, splits, strict=True))
        digest = hash_text(*(text for line in lines for text in line))[:_HASH_LETTERS]
        return {"photos": digest, **{split: splits.count(split) for split in SPLITS}}


def prepare_photos(
    folder: PhotoFolder,
    config: PatternsConfig,
    start: Start | None,
    *,
    sizes: tuple[int, int],
    check_size: Callable[[int], None],
    started: Mapping[str, str],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> TrainingPhotos:
    """Decode and split the photos that were found. An image size that is not given is chosen within
    `sizes`; `check_size` can reject it before a large set is decoded for nothing. `started` are the
    splits of the run to resume, by digest.

    Raises InputError for folders that cannot be trained on, TrainingStoppedError when `should_stop`
    returns true.
    """
    size = config.image_size or (start.image_size if start else choose_size(folder, sizes))
    check_size(size)
    cached = cache_photos(
        folder,
        config.images,
        size,
        cache_dir=config.cache_dir,
        workers=look_at_machine().cores,
        reporter=reporter,
        should_stop=should_stop,
    )
    _refuse_lost_classes(folder, cached, config.data)
    known = start.splits if start is not None else {}
    splits, copies = _draw_splits(cached, config, known, started, reporter)
    places = {name: place for place, name in enumerate(folder.classes)}
    return TrainingPhotos(
        folder=folder,
        cached=cached,
        size=TrainingChoice(value=size, reason=_explain_size(config.image_size, start, cached)),
        classes=folder.classes,
        labels=np.array([places[photo.label or ""] for photo in cached.photos], np.int64),
        splits=np.array([SPLITS.index(split) for split in splits], np.int64),
        copies_in_test=copies,
        earlier=_find_earlier(known, dict(zip(cached.digests, splits, strict=True))),
    )


def _draw_splits(
    cached: CachedPhotos,
    config: PatternsConfig,
    known: Mapping[str, str],
    started: Mapping[str, str],
    reporter: Reporter,
) -> tuple[list[str], int]:
    """The split of each photo, near duplicates in the same one; and how many test photos are near
    duplicates of training photos all the same, because of their folders or an earlier run."""
    assign = partial(assign_splits, cached.photos, shares=config.shares, known=known)
    plain = assign(cached.digests)
    if len(plain) > _MOST_COMPARED:
        return plain, 0
    with report_work(reporter, StepStarted(name="looking for near duplicates")):
        pairs = [(pair.first, pair.second) for pair in find_duplicates(read_small(cached))]
    splits = assign(group_copies(cached.photos, cached.digests, pairs, known))
    if dict(zip(cached.digests, plain, strict=True)) == started:  # by an earlier version
        splits = plain
    both = [{*pair} for pair in pairs if {splits[one] for one in pair} == {"train", "test"}]
    copies = {one for pair in both for one in pair if splits[one] == "test"}
    return splits, len(copies)


def _find_earlier(known: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """The earlier splits that would otherwise be forgotten: those of photos that are gone, and of
    test photos that were trained on."""
    return {
        digest: split
        for digest, split in known.items()
        if digest not in now or (now[digest] == "test" and split != "test")
    }


def _explain_size(wanted: int | None, start: Start | None, cached: CachedPhotos) -> str:
    if wanted is not None:
        return "requested with `image_size`"
    if start is not None:
        return "from the weights that it starts from"
    width, height = np.median(cached.sizes, axis=0).round().astype(int)
    about = f"since photos are about {width:,} x {height:,}"
    if min(width, height) > 1.5 * cached.size:
        return f"{about}; set `image_size` for larger ones"
    is_enlarged = max(width, height) < cached.size
    return f"{about}, enlarged" if is_enlarged else about


def _refuse_lost_classes(folder: PhotoFolder, cached: CachedPhotos, data: Path) -> None:
    """Raise InputError if none of the photos of a class can be read: the class must not vanish
    silently."""
    lost = set(folder.classes) - {photo.label for photo in cached.photos}
    if not lost:
        return
    name = min(lost)
    [first, *_] = [fault for fault in cached.faults if fault.label == name]
    raise InputError(
        f'none of the photos of the class "{name}" can be used (the first, "{first.name}": '
        f'{first.reason}). Add other photos to its folder, or remove the folder from "{data}".'
    )
