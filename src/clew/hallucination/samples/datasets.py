"""The datasets of a folder written by `clew preprocess`: sequences, graphs, heads and grids, as
iterable and map-style datasets."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from clew.base.errors import InputError, StoreError
from clew.hallucination.samples.batches import (
    GRID_COLUMNS,
    HEAD_COLUMNS,
    GridSamples,
    HeadsSamples,
    SequenceSamples,
)
from clew.hallucination.samples.columns import check_samples
from clew.hallucination.samples.graph_batches import GRAPH_COLUMNS, GraphSamples
from clew.hallucination.samples.index import find_store, open_samples, read_index
from clew.loading.order import Rank
from clew.loading.reader import Access, SampleReader
from clew.loading.samples import LazyDataset
from clew.loading.stream import StreamDataset

SampleKind = Literal["sequences", "graphs", "heads", "grids"]
# The store of each kind, its columns, and what reads them.
_KINDS: dict[SampleKind, tuple[str, tuple[str, ...], Callable[..., Any]]] = {
    "sequences": ("sequences", ("sequence",), SequenceSamples),
    "graphs": ("graphs", GRAPH_COLUMNS, GraphSamples),
    "heads": ("heads", HEAD_COLUMNS, HeadsSamples),
    "grids": ("graphs", GRID_COLUMNS, GridSamples),
}


@dataclass(frozen=True, kw_only=True)
class PreprocessedSamples:
    """The samples of a split; None means all splits. Graphs may come `with_sequence`, and `flat`:
    as plain arrays."""

    kind: SampleKind
    folder: Path
    split: str | None = None
    with_sequence: bool = False
    flat: bool = False

    def __post_init__(self) -> None:
        for name in ("with_sequence", "flat"):
            if getattr(self, name) and self.kind != "graphs":
                raise InputError(f"{self.kind} do not have it: omit it.", setting=name, value=True)

    def open(self, *, access: Access | None, max_open: int) -> Any:
        store, columns, build = _KINDS[self.kind]
        path = find_store(self.folder, store)
        whole = read_index(path, store)
        reader = SampleReader(
            path,
            columns,
            ids=whole.example_ids,
            questions=whole.question_ids,
            check=check_samples,
            access=access,
            max_open=max_open,
        )
        index = whole.select(self.split)
        if self.kind != "graphs":
            return build(reader, index)
        sequences = None
        if self.with_sequence:
            beside = PreprocessedSamples(kind="sequences", folder=self.folder, split=self.split)
            sequences = beside.open(access=access, max_open=max_open)
            if not np.array_equal(sequences.index.question_ids, index.question_ids):
                raise StoreError(
                    f"the sequences and the graphs in {self.folder} belong to different "
                    "samples: create both again from the same traces, or omit with_sequence."
                )
        return GraphSamples(reader, index, sequences, flat=self.flat)


class _StreamOfKind(StreamDataset):
    _kind: ClassVar[SampleKind]

    def __init__(
        self,
        preprocessed_dir: str | Path,
        max_cache_batches: int = 8,
        *,
        split: str | None = None,
        shuffle_buffer_size: int = 1000,
        seed: int = 0,
        rank: Rank | None = None,
        batch_size: int | None = None,
        with_sequence: bool = False,
        cache_dir: str | Path | None = None,
        cache_size: str | int | None = None,
    ) -> None:
        source = PreprocessedSamples(
            kind=self._kind,
            folder=open_samples(preprocessed_dir, cache_dir=cache_dir, cache_size=cache_size),
            split=split,
            with_sequence=with_sequence,
        )
        super().__init__(
            source,
            shuffle_buffer_size=shuffle_buffer_size,
            seed=seed,
            max_cache_batches=max_cache_batches,
            rank=rank,
            batch_size=batch_size,
        )


class _MapOfKind(LazyDataset):
    _kind: ClassVar[SampleKind]

    def __init__(
        self,
        preprocessed_dir: str | Path,
        max_cache_batches: int = 2,
        *,
        split: str | None = None,
        copy: bool = True,
        with_sequence: bool = False,
        flat: bool = False,
        cache_dir: str | Path | None = None,
        cache_size: str | int | None = None,
    ) -> None:
        source = PreprocessedSamples(
            kind=self._kind,
            folder=open_samples(preprocessed_dir, cache_dir=cache_dir, cache_size=cache_size),
            split=split,
            with_sequence=with_sequence,
            flat=flat,
        )
        super().__init__(source, max_cache_batches=max_cache_batches, copy=copy)


class PreprocessedLSTMDataset(_StreamOfKind):
    """Sequences `[layers, dim]` with their labels, as an iterable dataset.

    A sample is a dict: `sequence` float16 `[layers, dim]`, `label` (1 is hallucinated), `index`
    (its index in the dataset), `question_id`.

    Args:
        preprocessed_dir: Folder that "clew preprocess" wrote, or its URL.
        max_cache_batches: Number of shards to keep open.
        split: train, validation, test, or None for all.
        shuffle_buffer_size: Number of samples to shuffle at a time; 0 keeps the stored order.
        seed: Seed for the order.
        rank: The share of this process. [default: from torch.distributed]
        batch_size: If given, PyTorch's DataLoader returns the same batches for any number of
            workers.
        cache_dir: Folder for shards from a URL. [default: the user's cache folder]
        cache_size: The most that this folder may take, such as "50GB".

    Raises:
        InputError: A setting cannot be used.
        StoreError: The folder is missing, incomplete or damaged.
    """

    _kind = "sequences"


class PreprocessedGNNDataset(_StreamOfKind):
    """The attention graphs of all layers with their labels, as an iterable dataset of
    `GraphSample`s.

    PyTorch's DataLoader batches them through `collate`.

    Args:
        preprocessed_dir: Folder that "clew preprocess" wrote, or its URL.
        max_cache_batches: Number of shards to keep open.
        split: train, validation, test, or None for all.
        shuffle_buffer_size: Number of samples to shuffle at a time; 0 keeps the stored order.
        seed: Seed for the order.
        rank: The share of this process. [default: from torch.distributed]
        batch_size: If given, PyTorch's DataLoader returns the same batches for any number of
            workers.
        with_sequence: Add the sequence `[layers, dim]` to each sample.
        cache_dir: Folder for shards from a URL. [default: the user's cache folder]
        cache_size: The most that this folder may take, such as "50GB".

    Raises:
        InputError: A setting cannot be used.
        StoreError: The folder is missing, incomplete or damaged.
    """

    _kind = "graphs"


class PreprocessedLSTMMapDataset(_MapOfKind):
    """Sequences with their labels, as a map-style dataset; samples are as in
    `PreprocessedLSTMDataset`.

    Args:
        preprocessed_dir: Folder that "clew preprocess" wrote, or its URL.
        max_cache_batches: Number of shards to keep open.
        split: train, validation, test, or None for all.
        copy: False returns views of the file (see `LazyDataset`).
        cache_dir: Folder for shards from a URL. [default: the user's cache folder]
        cache_size: The most that this folder may take, such as "50GB".

    Raises:
        InputError: A setting cannot be used.
        StoreError: The folder is missing, incomplete or damaged.
    """

    _kind = "sequences"


class PreprocessedGNNMapDataset(_MapOfKind):
    """The attention graphs of all layers with their labels, as a map-style dataset of
    `GraphSample`s.

    Args:
        preprocessed_dir: Folder that "clew preprocess" wrote, or its URL.
        max_cache_batches: Number of shards to keep open.
        split: train, validation, test, or None for all.
        with_sequence: Add the sequence `[layers, dim]` to each sample.
        flat: Batches of clew's `Loader` are dicts of plain arrays instead of PyG batches.
        cache_dir: Folder for shards from a URL. [default: the user's cache folder]
        cache_size: The most that this folder may take, such as "50GB".

    Raises:
        InputError: A setting cannot be used.
        StoreError: The folder is missing, incomplete or damaged.
    """

    _kind = "graphs"


class PreprocessedHeadsMapDataset(_MapOfKind):
    """One attention graph per answer over all layers and heads (the input of CHARM), as a map-style
    dataset for clew's `Loader`.

    Args:
        preprocessed_dir: Folder that "clew preprocess" wrote, or its URL.
        max_cache_batches: Number of shards to keep open.
        split: train, validation, test, or None for all.
        cache_dir: Folder for shards from a URL. [default: the user's cache folder]
        cache_size: The most that this folder may take, such as "50GB".

    Raises:
        InputError: A setting cannot be used.
        StoreError: The folder is missing, incomplete or damaged.
    """

    _kind = "heads"


class PreprocessedGridsMapDataset(_MapOfKind):
    """Grids (layers by tokens) of reduced hidden states (the input of ACT-ViT), as a map-style
    dataset for clew's `Loader`.

    Args:
        preprocessed_dir: Folder that "clew preprocess" wrote, or its URL.
        max_cache_batches: Number of shards to keep open.
        split: train, validation, test, or None for all.
        cache_dir: Folder for shards from a URL. [default: the user's cache folder]
        cache_size: The most that this folder may take, such as "50GB".

    Raises:
        InputError: A setting cannot be used.
        StoreError: The folder is missing, incomplete or damaged.
    """

    _kind = "grids"
