"""The contents of a folder of samples, from manifests, splits.csv and the small columns."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.base.errors import StoreError
from clew.hallucination.samples.columns import check_samples
from clew.hallucination.samples.source import KINDS, lengths
from clew.hallucination.samples.splits import SPLITS_FILE, Splits, read_splits
from clew.hallucination.traces.schema import id_fields
from clew.hallucination.traces.summary import Spread, StoreSummary, summarize_store
from clew.loading.splits import SPLIT_NAMES
from clew.storage.manifest import MANIFEST_NAME, read_manifest
from clew.storage.reader import StoreReader


@dataclass(frozen=True, kw_only=True)
class SplitBalance:
    """The samples of one split ("all" if there are no splits) and their labels."""

    split: str
    samples: int
    hallucinated: int
    correct: int
    unlabeled: int


@dataclass(frozen=True, kw_only=True)
class GraphSizes:
    """The sizes of the graphs of a store; tokens are counted once, edges over all layers."""

    tokens: Spread
    edges: Spread
    edges_per_token: float  # per layer, if there is one graph per layer


@dataclass(frozen=True, kw_only=True, repr=False)
class SamplesSummary:
    """The class balance, and each store with its sizes."""

    path: str
    balance: list[SplitBalance]
    stores: list[StoreSummary]
    graphs: GraphSizes | None
    heads: GraphSizes | None
    answer_fields: list[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __repr__(self) -> str:
        splits = ", ".join(
            f"{split.split} {split.samples:,} ({split.hallucinated:,} hallucinated)"
            for split in self.balance
        )
        return f"SamplesSummary({splits}; {self.path})"


def summarize(path: Path) -> SamplesSummary | StoreSummary:
    """The summary of any store, or of a folder written by `clew preprocess`; raises StoreError if
    there is none."""
    return summarize_samples(path) if _holds_samples(path) else summarize_store(path)


def _holds_samples(path: Path) -> bool:
    if (path / MANIFEST_NAME).exists():
        return read_manifest(path).kind in KINDS
    return any((path / name / MANIFEST_NAME).exists() for name in KINDS)


def summarize_samples(path: Path) -> SamplesSummary:
    """The summary of a folder written by `clew preprocess`, or of one sample store. Raises
    StoreError if there is no store or splits.csv does not match it.
    """
    alone = (path / MANIFEST_NAME).exists()
    folders = [path] if alone else [path / name for name in KINDS]
    found = [folder for folder in folders if (folder / MANIFEST_NAME).exists()]
    stores = [StoreReader(folder, check=check_samples) for folder in found]
    filled = {store.manifest.kind: store for store in stores if store.shards}
    # A single store may be next to the splits of its folder.
    splits_path = (path.absolute().parent if alone else path) / SPLITS_FILE
    splits = read_splits(splits_path) if splits_path.exists() else None
    return SamplesSummary(
        path=f"{path}",
        balance=_balance(stores, splits, splits_path),
        stores=[summarize_store(store.path) for store in stores],
        graphs=_graph_sizes(filled["graphs"]) if "graphs" in filled else None,
        heads=_graph_sizes(filled["heads"]) if "heads" in filled else None,
        answer_fields=_list_fields(filled["answers"]) if "answers" in filled else [],
    )


def _balance(
    stores: list[StoreReader], splits: Splits | None, splits_path: Path
) -> list[SplitBalance]:
    if splits is None:
        return [_count("all", _read(stores[0], "label"))]
    for store in stores:
        _refuse_strangers(store, splits, splits_path)
    numbered = enumerate(SPLIT_NAMES)
    return [_count(name, splits.label[splits.split == number]) for number, name in numbered]


def _refuse_strangers(store: StoreReader, splits: Splits, splits_path: Path) -> None:
    ids = _read(store, "global_example_id")
    if not np.array_equal(ids, splits.global_example_id):
        raise StoreError(
            f'"{splits_path}" does not list the samples of "{store.path}" (it has '
            f'{len(splits):,} rows, the store {len(ids):,}): run the same "clew preprocess" '
            "command again."
        )


def _count(name: str, labels: np.ndarray) -> SplitBalance:
    hallucinated, unlabeled = int((labels > 0.5).sum()), int(np.isnan(labels).sum())
    correct = len(labels) - hallucinated - unlabeled
    return SplitBalance(
        split=name,
        samples=len(labels),
        hallucinated=hallucinated,
        correct=correct,
        unlabeled=unlabeled,
    )


def _graph_sizes(store: StoreReader) -> GraphSizes:
    nodes = _read(store, "nodes", lengths)
    edges = _read(store, "edge_source", lengths)
    of_layers = store.manifest.kind == "graphs"
    layers = store.manifest.setting("shape.layers") if of_layers else 1
    return GraphSizes(
        tokens=Spread.of(nodes // layers),
        edges=Spread.of(edges),
        edges_per_token=float(edges.sum() / max(1, nodes.sum())),
    )


def _list_fields(store: StoreReader) -> list[str]:
    """The stored fields of every answer, besides those of every kind."""
    common = {*(field.name for field in id_fields()), "label", "score"}
    return [name for name in store.shard(0).schema.names if name not in common]


def _read(
    store: StoreReader,
    column: str,
    convert: Callable[[pa.Array], np.ndarray] = lambda column: column.to_numpy(
        zero_copy_only=False
    ),
) -> np.ndarray:
    chunks = [
        convert(chunk)
        for index in range(len(store.shards))
        for chunk in store.shard(index).read_column(column).chunks
    ]
    return np.concatenate(chunks) if chunks else np.zeros(0)
