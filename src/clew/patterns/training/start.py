"""Weights to begin with: those of an earlier training, though classes may have come or gone."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from clew.engine.checkpoint import BEST
from clew.engine.files import read_tensors
from clew.errors import InputError, StoreError
from clew.patterns.networks import build_network
from clew.patterns.trained.model import PREFIX, explain_misfit, read_model_settings
from clew.patterns.training.config import PatternsConfig
from clew.patterns.training.tables import read_known_splits
from clew.storage.hashing import hash_file

_HASH_LETTERS = 16


@dataclass(frozen=True, kw_only=True)
class Start:
    """An earlier training; `digest` changes with any of its weights, `splits` are those of its
    photos, and of those of the trainings before it, by their digests."""

    folder: Path
    network: str
    image_size: int
    classes: tuple[str, ...]
    digest: str
    splits: dict[str, str]

    def load_into(self, network: nn.Module, classes: tuple[str, ...]) -> None:
        """A class that was known keeps what was learnt of it; new ones begin with the network's
        own numbers. Raises StoreError for weights of another clew's network."""
        tensors, _ = read_tensors(self.folder / BEST)
        weights = network.state_dict()
        heads = find_head(self.network, self.image_size)
        try:
            for name, fresh in weights.items():
                learnt = tensors[f"{PREFIX}{name}"]
                weights[name] = self._match(fresh, learnt, classes) if name in heads else learnt
            network.load_state_dict(weights)
        except (RuntimeError, KeyError) as error:
            raise StoreError(explain_misfit(self.folder / BEST, self.network, error)) from None

    def _match(self, fresh: Tensor, learnt: Tensor, classes: tuple[str, ...]) -> Tensor:
        places = {name: place for place, name in enumerate(self.classes)}
        matched = fresh.clone()
        for row, name in enumerate(classes):
            if name in places:
                matched[row] = learnt[places[name]]
        return matched


def open_start(config: PatternsConfig) -> Start | None:
    """None where a run begins with nothing. Raises StoreError when the folder holds no finished
    training, InputError for settings that its weights do not fit."""
    folder = config.start_from
    if folder is None:
        return None
    if folder.resolve() == config.output_dir.resolve():
        raise InputError(
            f'--start-from and --output-dir are both "{folder}": give another --output-dir, what '
            f"was trained before is kept."
        )
    settings = read_model_settings(folder)
    start = Start(
        folder=folder,
        network=settings["network"],
        image_size=settings["image_size"],
        classes=tuple(settings["classes"]),
        digest=hash_file(folder / BEST)[:_HASH_LETTERS],
        splits=read_known_splits(folder),
    )
    _refuse_other(config, start)
    return start


def find_head(network: str, image_size: int) -> set[str]:
    """The names of the weights that have a row a class: those whose shape follows their number."""
    with torch.device("meta"):
        few, more = (
            build_network(network, classes=count, image_size=image_size).state_dict()
            for count in (2, 3)
        )
    return {name for name, value in few.items() if value.shape != more[name].shape}


def _refuse_other(config: PatternsConfig, start: Start) -> None:
    wishes = {
        "--network": (config.network, start.network),
        "--image-size": (config.image_size, start.image_size),
    }
    for flag, (wished, there) in wishes.items():
        if wished is not None and wished != there:
            raise InputError(
                f'{flag} is {wished}, but the weights in "{start.folder}" are those of {there}: '
                f"leave {flag} out, or begin from scratch (without --start-from; a set with "
                f"--overwrite)."
            )
