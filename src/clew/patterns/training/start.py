"""Starting weights: those of an earlier run, even if classes were added or removed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clew.base.errors import InputError
from clew.engine.folders import BEST
from clew.engine.model_files import read_model, refuse_non_finite
from clew.patterns.networks import build_network
from clew.patterns.trained.model import PREFIX, read_model_settings
from clew.patterns.trained.tables import read_known_splits
from clew.storage.hashing import hash_file

_HASH_LETTERS = 16


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
