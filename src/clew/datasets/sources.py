"""Where samples come from: a folder that `clew preprocess` wrote, opened for reading."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from clew.datasets.buffers import BufferPool
from clew.datasets.graphs import GRAPH_COLUMNS, GraphSamples
from clew.datasets.index import SampleIndex, find_store, read_index
from clew.datasets.reader import Access, Rows, SampleReader
from clew.datasets.sequences import SequenceSamples
from clew.errors import StoreError


class Samples(Protocol):
    """Reads samples by their places in the data set, as whole batches or one by one."""

    @property
    def index(self) -> SampleIndex: ...

    @property
    def reader(self) -> SampleReader: ...

    def __len__(self) -> int: ...

    def read_batch(self, indices: Rows, buffers: BufferPool) -> Any: ...

    def read_samples(self, indices: Rows, buffers: BufferPool) -> list[Any]: ...

    def read_sample(self, index: int, buffers: BufferPool | None) -> Any: ...


class SampleSource(Protocol):
    """Opens the same samples as often as wanted, each time with another access to the files."""

    def open(self, *, access: Access | None, max_open: int) -> Samples: ...


@dataclass(frozen=True, kw_only=True)
class PreprocessedSequences:
    """The sequences of a split; None takes all splits."""

    folder: Path
    split: str | None = None

    def open(self, *, access: Access | None, max_open: int) -> SequenceSamples:
        path = find_store(self.folder, "sequences")
        whole = read_index(path, "sequences")
        reader = SampleReader(
            path,
            ("sequence",),
            ids=whole.example_ids,
            questions=whole.question_ids,
            access=access,
            max_open=max_open,
        )
        return SequenceSamples(reader, whole.select(self.split))


@dataclass(frozen=True, kw_only=True)
class PreprocessedGraphs:
    """The graphs of a split, with their sequences beside them on request."""

    folder: Path
    split: str | None = None
    with_sequence: bool = False
    flat: bool = False

    def open(self, *, access: Access | None, max_open: int) -> GraphSamples:
        path = find_store(self.folder, "graphs")
        whole = read_index(path, "graphs")
        reader = SampleReader(
            path,
            GRAPH_COLUMNS,
            ids=whole.example_ids,
            questions=whole.question_ids,
            access=access,
            max_open=max_open,
        )
        index, sequences = whole.select(self.split), None
        if self.with_sequence:
            beside = PreprocessedSequences(folder=self.folder, split=self.split)
            sequences = beside.open(access=access, max_open=max_open)
            if not np.array_equal(sequences.index.question_ids, index.question_ids):
                raise StoreError(
                    f"the sequences in {self.folder} are of other samples than the graphs: make "
                    f"both again from the same traces, or leave with_sequence out."
                )
        return GraphSamples(reader, index, sequences, flat=self.flat)
