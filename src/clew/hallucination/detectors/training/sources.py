"""Where the samples of a run come from: a folder of `clew preprocess`, or traces with their scores.

Traces are labeled and split when they are opened, as `clew preprocess` does by default.
"""

import glob
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from clew.base.errors import InputError, StoreError
from clew.base.urls import is_url
from clew.engine.processes import first_does
from clew.hallucination.detectors.registry import (
    FORMS,
    STORES,
    NetworkKind,
    SampleKind,
    run_setting,
)
from clew.hallucination.labels import HigherIs
from clew.hallucination.samples.datasets import (
    PreprocessedGraphs,
    PreprocessedGrids,
    PreprocessedHeads,
    PreprocessedSequences,
)
from clew.hallucination.samples.mixed import JoinedSamples, MixedAnswers
from clew.hallucination.samples.raw import (
    RawGraphs,
    RawSequences,
    RawTraces,
    convert_pattern,
)
from clew.loading.reader import Access
from clew.loading.samples import LazyDataset, Samples, SampleSource
from clew.storage import read_manifest
from clew.storage.manifest import MANIFEST_NAME

logger = logging.getLogger(__name__)

_SOURCES: dict[SampleKind, Callable[..., SampleSource]] = {
    "sequences": PreprocessedSequences,
    "graphs": partial(PreprocessedGraphs, with_sequence=True, flat=True),
    "heads": PreprocessedHeads,
    "grids": PreprocessedGrids,
}


class DataSource(Protocol):
    """Opens the splits of a set of samples."""

    @property
    def name(self) -> str:
        """The name of the samples in messages."""

    def open(self, kind: SampleKind, split: str) -> LazyDataset: ...

    def refuse_missing(self, networks: list[NetworkKind]) -> None:
        """Raises InputError if a network requires samples that are missing."""


@dataclass(frozen=True, kw_only=True)
class PreprocessedData:
    """A folder written by `clew preprocess`, or a sample store written by `clew convert`."""

    folder: Path

    @property
    def name(self) -> str:
        return f"{self.folder}"

    def open(self, kind: SampleKind, split: str) -> LazyDataset:
        return _lazy(_SOURCES[kind](folder=self.folder, split=split))

    def refuse_missing(self, networks: list[NetworkKind]) -> None:
        if not self.folder.exists():
            raise InputError(
                f'there is no folder "{self.folder}": create it with "clew preprocess", or set '
                "`preprocessed_dir` to the folder of the samples (or `data_pattern` to the "
                "traces)."
            )
        held = {store for store in STORES if _holds(self.folder, store)}
        if not held:
            self._explain_strange()
            return
        for store in STORES:
            without = [n for n in networks if store in FORMS[n.samples].stores]
            if without and store not in held:
                raise InputError(_explain_missing(self.folder, store, without, networks))

    def _explain_strange(self) -> None:
        """Raises InputError for a folder that is not a store; its contents are checked when it is
        opened."""
        others = [path.parent for path in sorted(self.folder.glob(f"*/{MANIFEST_NAME}"))]
        renames = [f'"{path}" to "{path.with_name(read_manifest(path).kind)}"' for path in others]
        if renames:
            raise InputError(
                f'"{self.folder}" contains stores with names other than "sequences" and '
                f'"graphs": rename {" and ".join(renames)}.'
            )
        try:
            read_manifest(self.folder)
        except StoreError as error:
            raise InputError(
                f"{error.text.rstrip('.')}. `preprocessed_dir` is the folder that "
                f'"clew preprocess" wrote.',
                action=error.action,
                store=error.store,
            ) from None


@dataclass(frozen=True, eq=False, kw_only=True)
class MixedData:
    """Samples of several folders under new splits; a batch mixes samples of all of them."""

    answers: MixedAnswers

    @property
    def name(self) -> str:
        return self.answers.name

    def open(self, kind: SampleKind, split: str) -> LazyDataset:
        portions = self.answers.splits[split]
        sources = [_SOURCES[kind](folder=one.data.folder, split=None) for one in portions]
        rows = tuple(one.rows for one in portions)
        return _lazy(JoinedSamples(sources=tuple(sources), rows=rows))

    def refuse_missing(self, networks: list[NetworkKind]) -> None:
        for data in self.answers.folders:
            PreprocessedData(folder=data.folder).refuse_missing(networks)


@dataclass(frozen=True, kw_only=True)
class RawData:
    """A trace store and the file with its scores."""

    store: Path
    scores_file: Path
    score_threshold: float
    higher_is: HigherIs | None = None

    @property
    def name(self) -> str:
        return f"{self.store}"

    def open(self, kind: SampleKind, split: str) -> LazyDataset:
        traces = RawTraces(
            store=self.store,
            scores_file=self.scores_file,
            score_threshold=self.score_threshold,
            higher_is=self.higher_is,
            split=split,
        )
        if kind == "sequences":
            return _lazy(RawSequences(traces=traces))
        return _lazy(RawGraphs(traces=traces, with_sequence=True, flat=True))

    def refuse_missing(self, networks: list[NetworkKind]) -> None:
        """Raise InputError for networks other than the default ones: traces provide samples for
        those only."""
        for network in networks:
            if network.samples not in ("sequences", "graphs"):
                raise InputError(
                    f"{network.name} cannot be trained on traces directly: create samples from "
                    f'"{self.store}" with "clew preprocess", and give `preprocessed_dir`.'
                )


def open_traces(
    pattern: str | Path,
    *,
    scores_file: Path,
    score_threshold: float,
    higher_is: HigherIs | None,
    converted: Path,
) -> RawData:
    """A trace store; legacy files are first converted into one at `converted`."""
    store = Path(pattern) if isinstance(pattern, str) else pattern
    if isinstance(pattern, str) and (glob.has_magic(pattern) or store.is_file()):
        if is_url(converted):
            raise InputError(
                "legacy files are converted into a store in `out`, which is at a URL: convert them "
                'with "clew convert" first, and give that store.',
                setting="data_pattern",
                value=pattern,
            )
        store = converted
        logger.info(f'converting {pattern} into a store, "{store}"')
        first_does(partial(convert_pattern, pattern, store))
    return RawData(
        store=store, scores_file=scores_file, score_threshold=score_threshold, higher_is=higher_is
    )


class _OpenedOnce:
    """Opens samples once for each way of access. Planning opens the batches again and again, and
    reading the index of a large store takes longer than a batch."""

    def __init__(self, source: SampleSource) -> None:
        self._source = source
        self._opened: dict[tuple[Access | None, int], Samples] = {}

    def open(self, *, access: Access | None, max_open: int) -> Samples:
        key = (access, max_open)
        if key not in self._opened:
            self._opened[key] = self._source.open(access=access, max_open=max_open)
        return self._opened[key]


def _lazy(source: SampleSource) -> LazyDataset:
    return LazyDataset(_OpenedOnce(source))


def _holds(folder: Path, kind: str) -> bool:
    inner = folder / kind
    store = inner if (inner / MANIFEST_NAME).exists() else folder
    return (store / MANIFEST_NAME).exists() and read_manifest(store).kind == kind


def _explain_missing(
    folder: Path, store: str, without: list[NetworkKind], wanted: list[NetworkKind]
) -> str:
    *some, last = [network.name for network in without]
    names = f"{', '.join(some)} and {last} require" if some else f"{last} requires"
    leave_out = " ".join(run_setting(network.name, on=False) for network in without)
    other_way = "" if without == wanted else f", or train without: {leave_out}"
    return f'"{folder}" has no {store}, which {names}: {STORES[store]}{other_way}.'
