"""Samples of several folders as one dataset, for networks: batches mix samples of all folders,
which are read from the files of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.hallucination.samples.reading.graphs import GraphSamples
from clew.loading.joined import JoinedReader
from clew.loading.reader import Access, Rows, choose_access
from clew.loading.samples import SampleIndex, Samples, SampleSource


@dataclass(frozen=True, kw_only=True)
class JoinedSamples:
    """Some samples of each of several sources, one source after the other. `rows` are places in
    the dataset of each source."""

    sources: tuple[SampleSource, ...]
    rows: tuple[Rows, ...]

    def open(self, *, access: Access | None, max_open: int) -> Samples:
        each = max(1, max_open // len(self.sources))
        if access is None:
            opened = [one.open(access="read", max_open=1) for one in self.sources]
            access = choose_access(sum(one.reader.bytes for one in opened), opened[0].reader.path)
        return join([one.open(access=access, max_open=each) for one in self.sources], self.rows)


def join(parts: Sequence[Samples], rows: Sequence[Rows]) -> Any:
    """Samples of the same kind as one. Raises InputError for arrays of different shapes."""
    first, index = parts[0], _join_index(parts, rows)
    reader = JoinedReader([one.reader for one in parts])
    if not isinstance(first, GraphSamples):
        return type(first)(reader, index)  # type: ignore[call-arg]
    beside = [getattr(one, "sequences", None) for one in parts]
    sequences = None if beside[0] is None else join([one for one in beside if one], rows)
    return GraphSamples(reader, index, sequences, flat=first.flat)


def _join_index(parts: Sequence[Samples], rows: Sequence[Rows]) -> SampleIndex:
    """The chosen samples of all parts; their rows count through the joined stores."""
    starts = np.cumsum([0, *(one.reader.rows for one in parts)])
    chosen = [one.index.at(some) for one, some in zip(parts, rows, strict=True)]
    joined = {
        name: np.concatenate([getattr(one, name) for one in chosen])
        for name in ("example_ids", "question_ids", "labels", "splits")
    }
    places = [one.rows + start for one, start in zip(chosen, starts, strict=False)]
    return SampleIndex(rows=np.concatenate(places), **joined)
