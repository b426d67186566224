"""The progress events of training several networks, in addition to those of the engine."""

from dataclasses import dataclass
from typing import Any

from clew.base.progress import Event


@dataclass(frozen=True, kw_only=True)
class NetworkStarted(Event):
    """The `number`-th of `count` networks, from 1, is about to be planned and trained."""

    title: str
    number: int
    count: int

    def __str__(self) -> str:
        return f"network {self.number} of {self.count}: {self.title}"


@dataclass(frozen=True, kw_only=True)
class NetworkEnded(Event):
    """A network is trained. `run` is its entry in results.json; `is_new` is False if an earlier run
    trained it."""

    run: dict[str, Any]
    is_new: bool

    def __str__(self) -> str:
        done = "trained" if self.is_new else "already trained"
        return f"{self.run['model']}: {done}, test AUROC {self.run['test_auroc']}"
