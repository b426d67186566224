"""Train directly on trace stores: slower, but without extra disk space; legacy files
are converted first. Reading a trace that `clew preprocess` would exclude raises StoreError."""

import glob
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clew.base.errors import InputError, StoreError
from clew.hallucination.labels import HigherIs, read_scores
from clew.hallucination.samples.attention_graphs import Edges, Nodes, build_graphs, leads_forward
from clew.hallucination.samples.batches import SequenceSamples
from clew.hallucination.samples.graph_batches import GraphParts, GraphSamples
from clew.hallucination.samples.labeled import label_shards
from clew.hallucination.samples.source import EDGES, TraceSource
from clew.hallucination.samples.splits import assign_splits
from clew.hallucination.traces.packed import unpack
from clew.hallucination.traces.schema import check_traces
from clew.loading.buffers import BufferPool
from clew.loading.reader import Access, Rows, SampleReader
from clew.loading.samples import LazyDataset, SampleIndex, Samples, to_strings
from clew.loading.splits import Shares
from clew.storage.mirror import open_folder

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RawSamples:
    """Sequences, or graphs if `of_graphs`, of a trace store with its scores. The splits are those
    of `clew preprocess` by default."""

    store: Path
    scores_file: Path
    score_threshold: float = 0.5
    higher_is: HigherIs | None = None
    split: str | None = None
    of_graphs: bool = False
    attn_threshold: float = 0.0
    with_sequence: bool = False
    flat: bool = False

    def open(self, *, access: Access | None, max_open: int) -> Any:
        columns = ("last_hidden", *(("nodes", *EDGES) if self.of_graphs else ()))
        reader = SampleReader(
            self.store, columns, check=check_traces, access=access, max_open=max_open
        )
        if not self.of_graphs:
            return TraceSequenceSamples(reader, self._read_index(), column="last_hidden")
        sequences = None
        if self.with_sequence:
            sequences = replace(self, of_graphs=False).open(access=access, max_open=max_open)
        return TraceGraphSamples(
            reader,
            self._read_index(),
            sequences,
            flat=self.flat,
            attn_threshold=self.attn_threshold,
        )

    def _read_index(self) -> SampleIndex:
        """Join the traces' ids with their scores; raises InputError if one has none. Answers that
        the model refused, or that a person excluded, are excluded."""
        scores = read_scores(self.scores_file, higher_is=self.higher_is)
        shards, notes = label_shards(
            TraceSource(self.store).read_tables(), scores, threshold=self.score_threshold
        )
        for note in (*scores.notes, *notes):
            logger.info(note)
        tables = [shard.table for shard in shards]
        rows = np.flatnonzero(np.concatenate([shard.labeled for shard in shards]))
        ids = np.concatenate([table.global_example_id for table in tables])[rows]
        every_id = [name for table in tables for name in table.question_id]
        asked = [both for table in tables for both in zip(table.question, table.group, strict=True)]
        question_ids = [every_id[row] for row in rows.tolist()]
        questions, groups = ([asked[row][place] for row in rows.tolist()] for place in (0, 1))
        labels = np.concatenate([shard.labels for shard in shards])[rows]
        index = SampleIndex(
            rows=rows,
            example_ids=ids,
            question_ids=to_strings(question_ids),
            labels=labels,
            splits=assign_splits(
                question_ids, questions, labels, shares=Shares(), order=ids, groups=groups
            ),
        )
        return index.select(self.split)


class TraceSequenceSamples(SequenceSamples):
    """The last token's states, read from traces whose values have not been checked before."""

    def read_sequences(self, rows: Rows, buffers: BufferPool) -> torch.Tensor:
        sequences = _unpacked(super().read_sequences(rows, buffers).numpy())
        self._refuse_broken(sequences, rows)
        return sequences

    def read_sample(self, index: int, buffers: BufferPool | None) -> dict[str, Any]:
        sample = super().read_sample(index, buffers)
        sample["sequence"] = _unpacked(sample["sequence"].numpy())
        self._refuse_broken(sample["sequence"][None], self.index.rows[[index]])
        return sample

    def _refuse_broken(self, sequences: torch.Tensor, rows: Rows) -> None:
        finite = torch.isfinite(sequences).flatten(1).all(1).numpy()
        if not finite.all():
            row = int(rows[np.argmin(finite)])
            raise broken_trace(self, row, "its last_hidden contains NaN or infinity")


def _unpacked(states: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(unpack(states) if states.dtype == np.uint8 else states)


class TraceGraphSamples(GraphSamples):
    """Graphs built from the stored edges of every token when they are read."""

    def __init__(
        self,
        reader: SampleReader,
        index: SampleIndex,
        sequences: SequenceSamples | None,
        *,
        flat: bool,
        attn_threshold: float,
    ) -> None:
        super().__init__(reader, index, sequences, flat=flat)
        self._layers = reader.columns["last_hidden"].item_shape[0]
        self._attn_threshold = attn_threshold

    @property
    def max_degree(self) -> int:
        return self.reader.columns["edge_source"].item_shape[0]

    def read_parts(self, rows: Rows) -> list[GraphParts]:
        shards = self.reader.locate(rows)
        columns = [self.reader.read_rows(name, rows, shards) for name in ("nodes", *EDGES)]
        return [self._build(*parts) for parts in zip(rows.tolist(), *columns, strict=True)]

    def _build(
        self, row: int, nodes: np.ndarray, source: np.ndarray, weight: np.ndarray
    ) -> GraphParts:
        if len({len(nodes), len(source), len(weight)}) > 1 or len(nodes) % self._layers:
            raise broken_trace(self, row, "its nodes and edges do not match its tokens")
        tokens = np.array([len(nodes) // self._layers])
        edges = Edges(source=source, weight=weight)
        places = Nodes(tokens=tokens, layers=self._layers)
        if nodes.dtype == np.uint8:
            nodes = unpack(nodes)
        if not (np.isfinite(nodes).all() and np.isfinite(weight).all()):
            raise broken_trace(self, row, "its nodes or edges contain NaN or infinity")
        if leads_forward(edges, places).any():
            raise broken_trace(self, row, "an edge leads from a token to an earlier one")
        graphs = build_graphs(edges, places, self._attn_threshold)
        return GraphParts(
            nodes=nodes,
            edges=(graphs.source, graphs.target),
            edge_attr=graphs.weight[:, None],
            node_counts=np.full(self._layers, tokens[0], np.int32),
            edge_counts=graphs.edge_counts[0],
        )


def broken_trace(samples: Samples, row: int, reason: str) -> StoreError:
    place = np.searchsorted(samples.index.rows, row)
    question_id, store = samples.index.question_ids[place], samples.reader.path
    return StoreError(
        f'the trace of {question_id} in {store} cannot be used for training: {reason}. Use "clew '
        'preprocess", which excludes and lists such traces.'
    )


class RawLSTMDataset(LazyDataset):
    """Sequences read directly from traces, without preprocessing, as a map-style dataset.

    Args:
        traces: A trace store, or a pattern such as "traces_data/*.pkl*" for legacy files.
        scores_file: The scores of the answers, as "clew label" writes them.
        score_threshold: Answers that score below it count as hallucinated.
        higher_is: Meaning of a high score: "correct" or "hallucinated". [default: inferred from the
            column name]
        split: train, validation, test, or None for all.
        converted: Folder of the store that legacy files are first converted into.
        max_cache_batches: Number of shards to keep open.

    Raises:
        InputError: An answer has no score, or a setting cannot be used.
        StoreError: There is no trace store, or a trace that is read cannot be used.
    """

    def __init__(
        self,
        traces: str | Path,
        scores_file: str | Path,
        *,
        score_threshold: float = 0.5,
        higher_is: HigherIs | None = None,
        split: str | None = None,
        converted: str | Path | None = None,
        max_cache_batches: int = 2,
    ) -> None:
        source = RawSamples(
            store=_open_store(traces, converted),
            scores_file=Path(scores_file),
            score_threshold=score_threshold,
            higher_is=higher_is,
            split=split,
        )
        super().__init__(source, max_cache_batches=max_cache_batches)


class RawGNNDataset(LazyDataset):
    """Attention graphs built from traces when they are read, without preprocessing, as a map-style
    dataset. Arguments are those of `RawLSTMDataset`; `attn_threshold` drops weaker edges,
    `with_sequence` adds the sequences, `flat` is for clew's `Loader`."""

    def __init__(
        self,
        traces: str | Path,
        scores_file: str | Path,
        *,
        score_threshold: float = 0.5,
        higher_is: HigherIs | None = None,
        split: str | None = None,
        converted: str | Path | None = None,
        max_cache_batches: int = 2,
        attn_threshold: float = 0.0,
        with_sequence: bool = False,
        flat: bool = False,
    ) -> None:
        source = RawSamples(
            store=_open_store(traces, converted),
            scores_file=Path(scores_file),
            score_threshold=score_threshold,
            higher_is=higher_is,
            split=split,
            of_graphs=True,
            attn_threshold=attn_threshold,
            with_sequence=with_sequence,
            flat=flat,
        )
        super().__init__(source, max_cache_batches=max_cache_batches)


def _open_store(traces: str | Path, converted: str | Path | None) -> Path:
    is_pattern = glob.has_magic(str(traces))
    return convert_pattern(str(traces), converted) if is_pattern else open_folder(traces)


def convert_pattern(pattern: str, converted: str | Path | None) -> Path:
    """Convert the matching legacy files into a store; files converted earlier are kept. Raises
    InputError if a file could not be used: training on a part must be explicit."""
    from clew.hallucination.legacy import convert_folder

    folder, names = Path(pattern).parent, Path(pattern).name
    if glob.has_magic(str(folder)):
        raise InputError(
            f'the pattern "{pattern}" has wildcards in its folder: give the files of one folder, '
            f'for example "traces_data/*.pkl*".'
        )
    if converted is None:
        raise InputError(
            f'"{pattern}" matches legacy files: give a folder for the converted store '
            '(converted="traces_store").'
        )
    result = convert_folder(folder, Path(converted), keep="compact", names=names)
    if not result.complete:
        raise InputError(
            f"{len(result.skipped):,} files or records of {pattern} cannot be used, e.g. "
            f"{result.skipped[0]}. Remove them, or use the traces that could be read: "
            f'"{converted}".'
        )
    return Path(converted)
