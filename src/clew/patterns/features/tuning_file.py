"""The checkpoint of fine-tuning the last blocks: what the next epoch starts from."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor
from torch.optim import Optimizer

from clew.base.errors import StoreError
from clew.base.typed_json import Bounds, Count, read_as, without_nan
from clew.engine.checkpoint import load_optimizer_state
from clew.engine.model_files import ModelFile, check_about, read_model, write_model
from clew.engine.optimizer import optimizer_tensors
from clew.patterns.features.last_blocks import LastBlocks
from clew.storage.places import AccessDeniedError

TUNING_FILE = "tuning.safetensors"
_NOW, _BEST, _OPTIMIZER = "now/", "best/", "optimizer/"
_ADVICE = "delete it to train again"
_NAME = "lite0"
_MOST_VIEWS = 100

Row = dict[str, int | float | None]


@dataclass(kw_only=True)
class Progress:
    """What was done: `head` describes the head, `epochs` are planned on the photos and `views` of
    each. `history` has one row per epoch as in log.csv, the first of the head alone; `best_epoch`
    counts from 1."""

    views: Annotated[int, Bounds(least=0, most=_MOST_VIEWS)]
    epochs: Count = 0
    head: str = ""
    history: list[Row] = field(default_factory=list)
    best_epoch: Count = 1

    @property
    def tuned(self) -> int:
        """How many epochs of fine-tuning are done."""
        return max(0, len(self.history) - 1)

    @property
    def best(self) -> Row:
        return self.history[self.best_epoch - 1]


@dataclass(frozen=True, kw_only=True)
class SavedTuning:
    """A checkpoint that was read."""

    progress: Progress
    file: ModelFile

    def load_best(self, blocks: LastBlocks) -> None:
        """Give the blocks the weights of the best epoch. Raises StoreError if they are damaged."""
        self.file.load_into(blocks, name=_NAME, prefix=_BEST)

    def load_last(self, blocks: LastBlocks, optimizer: Optimizer) -> None:
        """Restore weights and optimizer as they were after the last epoch. Raises StoreError."""
        self.file.load_into(blocks, name=_NAME, prefix=_NOW)
        load_optimizer_state(optimizer, blocks, self.file)


class TuningFile:
    """The file of one run. `identity` is what must be the same to resume it."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self._identity = json.loads(json.dumps(identity, default=str))

    def read(self) -> SavedTuning | None:
        """The checkpoint; None if there is none, or one of another run. Raises StoreError if it is
        damaged."""
        if not self.path.exists():
            return None
        file = read_model(self.path)
        wanted = {"identity": dict, "progress": Progress}
        check_about(self.path, file.about, wanted, what="a checkpoint", advice=_ADVICE)
        if file.about["identity"] != self._identity:
            return None
        progress: Progress = read_as(Progress, without_nan(file.about["progress"]), "progress")
        if not 1 <= progress.best_epoch <= len(progress.history) <= progress.epochs + 1:
            raise StoreError(f'the epochs in "{self.path}" contradict each other: {_ADVICE}.')
        return SavedTuning(progress=progress, file=file)

    def write(
        self,
        progress: Progress,
        blocks: LastBlocks,
        best: Mapping[str, Tensor],
        optimizer: Optimizer,
    ) -> None:
        """Raises StoreError if the disk is full."""
        tensors = {
            **{f"{_NOW}{name}": value for name, value in blocks.state_dict().items()},
            **{f"{_BEST}{name}": value for name, value in best.items()},
            **{
                f"{_OPTIMIZER}{name}": value
                for name, value in optimizer_tensors(optimizer, blocks).items()
            },
        }
        write_model(self.path, tensors, {"identity": self._identity, "progress": asdict(progress)})

    def remove(self) -> None:
        """Where nothing may be deleted, it stays: nobody reads it again."""
        with suppress(AccessDeniedError):
            self.path.unlink(missing_ok=True)
