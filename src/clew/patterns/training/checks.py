"""What can be refused is refused before photos are decoded, and before anything is written."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from clew.engine.checkpoint import BEST, LAST
from clew.engine.files import read_about
from clew.errors import InputError, SettingsMismatchError, StoreError
from clew.patterns.networks import GPU_NETWORK, TIMM, build_network
from clew.patterns.trained.model import RESULTS
from clew.patterns.training.config import PatternsConfig
from clew.patterns.training.tables import SPLITS_FILE, SplitRow, read_splits

if TYPE_CHECKING:
    from clew.patterns.training.photos import TrainingPhotos


def refuse_settings(config: PatternsConfig) -> None:
    """Raises InputError for a network that there is not, and for an output folder that cannot be;
    StoreError for one that holds the results of something else; SettingsMismatchError for one
    with a model whose training cannot be gone on with."""
    name = config.network or GPU_NETWORK
    if config.start_from is None:
        with torch.device("meta"):  # no memory, no numbers: only whether it can be built
            pretrained = config.pretrained and not name.startswith(TIMM)
            build_network(name, classes=2, image_size=128, pretrained=pretrained)
    out = config.output_dir.resolve()
    if out.is_relative_to(config.data.resolve()):
        raise InputError(
            f'the --output-dir "{config.output_dir}" lies in the folder of the photos, where its '
            f"pictures would be taken for photos: choose one outside."
        )
    refuse_other_results(config.output_dir, "test_accuracy", "best_epoch")  # no evaluation's
    _refuse_lost_run(config)


def _refuse_lost_run(config: PatternsConfig) -> None:
    """A model is not trained over because what its training would go on from was tidied away."""
    folder = config.output_dir
    if (folder / BEST).exists() and not (folder / LAST).exists() and not config.overwrite:
        raise SettingsMismatchError(
            f'"{folder}" holds a model ({BEST}), but not what its training would go on from '
            f'({LAST}): choose another --output-dir (--start-from "{folder}" begins with its '
            f"weights). --overwrite begins anew in this one."
        )


def refuse_other_results(folder: Path, *wanted: str) -> None:
    """Raises StoreError when there is a results.json without these figures."""
    path = folder / RESULTS
    if not path.exists():
        return
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f'"{path}" cannot be read ({error}): delete it (a model beside it is not touched, and '
            f"the same command writes it anew), or choose another --output-dir."
        ) from None
    if not isinstance(there, dict) or not set(wanted) <= there.keys():
        raise StoreError(f'"{path}" is that of something else: choose another --output-dir.')


def refuse_other_size(config: PatternsConfig, size: int) -> None:
    """Raises SettingsMismatchError when a run was begun in the folder with another image size."""
    if config.overwrite or not (config.output_dir / LAST).exists():
        return
    begun = read_about(config.output_dir / LAST).get("settings", {}).get("image_size")
    if begun != size:
        raise SettingsMismatchError(
            f'the run in "{config.output_dir}" was begun with an image size of {begun}, now it is '
            f"{size}: give --image-size {begun} to go on with it, or choose another "
            f"--output-dir. --overwrite begins anew in this one."
        )


def refuse_other_photos(config: PatternsConfig, photos: "TrainingPhotos") -> None:
    """Raises SettingsMismatchError when a run was begun in the folder with other photos."""
    folder = config.output_dir
    if not (folder / LAST).exists() or not (folder / SPLITS_FILE).exists():
        return
    changes = tell_changes(read_splits(config.output_dir), photos.rows())
    if changes:
        raise SettingsMismatchError(
            f'the photos in "{config.data}" are not those that "{config.output_dir}" was begun '
            f"with: {changes}. To train with them, beginning with what was learnt, give another "
            f'--output-dir and --start-from "{config.output_dir}"; --overwrite begins anew in '
            f"this one."
        )


def tell_changes(before: Sequence[SplitRow], now: Sequence[SplitRow]) -> str:
    """How many photos came, went, or have another class or split; "" where none did. A photo is
    known by its picture, not by its name."""
    old, new = ({row.digest: row for row in rows} for rows in (before, now))
    both = old.keys() & new.keys()
    counts = {
        "new": len(new.keys() - old.keys()),
        "gone": len(old.keys() - new.keys()),
        "in another class": sum(old[key].label != new[key].label for key in both),
        "in another split": sum(
            old[key].split != new[key].split and old[key].label == new[key].label for key in both
        ),
    }
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
