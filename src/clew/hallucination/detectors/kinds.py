"""The kinds of samples that networks read: where they lie, and what a batch of them holds."""

from dataclasses import dataclass
from typing import Any, Literal

SampleKind = Literal["sequences", "graphs", "heads", "grids"]

_AGAIN = 'run the "clew preprocess" command that made it again'
# Stores of samples in a folder of `clew preprocess`, and how one that is missing is come by.
STORES = {
    "sequences": f"{_AGAIN} without `sequences=False`",
    "graphs": f"{_AGAIN} without `graphs=False`",
    "heads": (
        'capture with `keep="full"`, which keeps whole attention maps, and run "clew preprocess" '
        "on that (without `heads=False`)"
    ),
}


@dataclass(frozen=True, kw_only=True)
class SampleForm:
    """`stores` are those that the samples are read from; `keys` tell a batch of them."""

    stores: tuple[str, ...]
    keys: tuple[str, ...]
    opened_with: str

    def is_batch(self, batch: Any) -> bool:
        return all(key in batch for key in self.keys)


FORMS: dict[SampleKind, SampleForm] = {
    "sequences": SampleForm(
        stores=("sequences",),
        keys=("sequence",),
        opened_with="PreprocessedLSTMMapDataset(...)",
    ),
    "graphs": SampleForm(
        stores=("sequences", "graphs"),
        keys=("sequence", "edge_attr"),
        opened_with="PreprocessedGNNMapDataset(..., with_sequence=True)",
    ),
    "heads": SampleForm(
        stores=("heads",),
        keys=("edge_attr", "is_answer"),
        opened_with="PreprocessedHeadsMapDataset(...)",
    ),
    "grids": SampleForm(
        stores=("graphs",),
        keys=("nodes", "max_tokens"),
        opened_with="PreprocessedGridsMapDataset(...)",
    ),
}
