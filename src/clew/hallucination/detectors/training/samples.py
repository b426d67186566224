"""Where the samples of a run come from: a folder of `clew preprocess`, or traces with their scores.

Traces are labeled and split when they are opened, as `clew preprocess` does by default.
"""

import glob
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float32

from clew.base.errors import InputError, StoreError
from clew.base.texts import bytes_text
from clew.base.urls import is_url
from clew.engine import LoadSettings, OpenBatches, plan_hardware
from clew.engine.feed import move
from clew.engine.processes import first_does
from clew.hallucination.detectors.detector import Detector
from clew.hallucination.detectors.detector_folder import load_detector
from clew.hallucination.detectors.registry import FORMS, NETWORKS, STORES, NetworkKind, run_setting
from clew.hallucination.samples.datasets import PreprocessedSamples, SampleKind
from clew.hallucination.samples.mixed import JoinedSamples, MixedAnswers
from clew.hallucination.samples.raw import RawSamples, convert_pattern
from clew.hallucination.samples.resident import ResidentSamples
from clew.hallucination.samples.splits import Balance
from clew.loading.buffers import BufferPool
from clew.loading.loader import Loader
from clew.loading.order import Rank
from clew.loading.reader import SampleReader
from clew.loading.samples import LazyDataset, SampleSource
from clew.loading.splits import SPLIT_NAMES
from clew.storage.manifest import MANIFEST_NAME, read_manifest
from clew.storage.reading import hash_text

logger = logging.getLogger(__name__)


def _open_kind(kind: SampleKind, folder: Path, split: str | None) -> PreprocessedSamples:
    """Networks read graphs with their sequences, as plain arrays."""
    of_graphs = kind == "graphs"
    return PreprocessedSamples(
        kind=kind, folder=folder, split=split, with_sequence=of_graphs, flat=of_graphs
    )


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
        return _lazy(_open_kind(kind, self.folder, split))

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
        sources = [_open_kind(kind, one.data.folder, None) for one in portions]
        rows = tuple(one.rows for one in portions)
        return _lazy(JoinedSamples(sources=tuple(sources), rows=rows))

    def refuse_missing(self, networks: list[NetworkKind]) -> None:
        for data in self.answers.folders:
            PreprocessedData(folder=data.folder).refuse_missing(networks)


@dataclass(frozen=True, kw_only=True)
class RawData:
    """A trace store and the file with its scores."""

    traces: RawSamples

    @property
    def name(self) -> str:
        return f"{self.traces.store}"

    def open(self, kind: SampleKind, split: str) -> LazyDataset:
        graphs = kind == "graphs"
        return _lazy(
            replace(self.traces, split=split, of_graphs=graphs, with_sequence=graphs, flat=graphs)
        )

    def refuse_missing(self, networks: list[NetworkKind]) -> None:
        """Raise InputError for networks other than the default ones: traces provide samples for
        those only."""
        for network in networks:
            if network.samples not in ("sequences", "graphs"):
                raise InputError(
                    f"{network.name} cannot be trained on traces directly: create samples from "
                    f'"{self.name}" with "clew preprocess", and give `preprocessed_dir`.'
                )


def open_traces(pattern: str | Path, *, converted: Path) -> Path:
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
    return store


class _OpenedOnce:
    """Opens samples once for each way of access. Planning opens the batches again and again, and
    reading the index of a large store takes longer than a batch."""

    def __init__(self, source: SampleSource) -> None:
        self.open = cache(source.open)


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


# Samples stay on the GPU if they leave most of its memory to the networks.
_RESIDENT_SHARE = 0.3
_HASH_LETTERS = 16
_PURPOSE = {"train": "train on", "validation": "validate on", "test": "test on"}
_BATCH = 64
Scores = Float32[np.ndarray, " samples"]


class DetectorSamples:
    """The splits of one kind of samples, opened. Raises InputError if a split is empty or has a
    single class: it could not be used for training or evaluation."""

    def __init__(self, source: DataSource, kind: SampleKind) -> None:
        self._kind = kind
        self.splits = {name: source.open(kind, name) for name in SPLIT_NAMES}
        self.balance = {name: Balance.of(split.index.labels) for name, split in self.splits.items()}
        refuse_thin(source.name, self.balance)
        self._on_gpu: dict[str, ResidentSamples] = {}

    @property
    def positive_weight(self) -> float:
        """The weight of a hallucinated training sample that balances both classes."""
        return self.balance["train"].correct / self.balance["train"].hallucinated

    def describe(self) -> dict[str, Any]:
        """Identifies the questions, their labels and splits, independent of their location."""
        counts = {name: asdict(balance) for name, balance in self.balance.items()}
        indices = {name: split.index for name, split in self.splits.items()}
        questions = {name: (index.labels, index.question_ids) for name, index in indices.items()}
        return {"questions": hash_questions(questions), **counts}

    def hash_values(self) -> str:
        """A hash that changes with any value of the samples."""
        shards = [shard.sha256 for reader in self._readers() for shard in reader.shards]
        return hash_text(*shards)[:_HASH_LETTERS]

    def open_later(self, split: str) -> OpenBatches:
        """A function that lets the engine open the batches of a split in a size of its choice."""
        return partial(self.open, split)

    def open(self, split: str, settings: LoadSettings, rank: Rank | None = None) -> Loader:
        """With `Rank()`, all batches for this process, also in distributed training."""
        resident = self._bring_to_gpu(split, settings)
        if resident is not None:
            settings = replace(settings, num_workers=0, persistent_workers=False, pin_memory=False)
        dataset = self.splits[split] if resident is None else resident
        return Loader(dataset, **asdict(settings), rank=rank)

    def release(self) -> None:
        """Free the GPU memory."""
        self._on_gpu.clear()

    def _bring_to_gpu(self, split: str, settings: LoadSettings) -> ResidentSamples | None:
        """The samples on the training GPU if they fit: they are read once for all epochs. With a
        limit on open shards, every batch comes from the files. Only batches for a GPU are pinned.
        """
        if not settings.pin_memory or settings.max_cache_batches is not None:
            return None
        if split not in self._on_gpu:
            place = _own_gpu()
            if not self._fit_on(place):
                return None
            self._on_gpu[split] = ResidentSamples(
                self.splits[split], place, num_workers=max(1, settings.num_workers)
            )
        return self._on_gpu[split]

    def _fit_on(self, place: torch.device) -> bool:
        """Whether the samples of all splits fit on the GPU; decided once."""
        if self._on_gpu:
            return True
        size = sum(reader.bytes for reader in self._readers())
        fits = size <= _RESIDENT_SHARE * torch.cuda.mem_get_info(place)[0]
        stay = "stay on disk: they do not fit in GPU memory"
        where = f"are loaded onto {place} once" if fits else stay
        logger.info(f"the samples ({bytes_text(size)} of {self._kind}) {where}")
        return fits

    def _readers(self) -> list[SampleReader]:
        """The readers of the stores behind the samples; graphs also have their sequences."""
        samples = self.splits["train"].samples
        beside = getattr(samples, "sequences", None)
        return [samples.reader] if beside is None else [samples.reader, beside.reader]


def read_sizes(dataset: LazyDataset) -> dict[str, int]:
    """Sizes of the arrays of the first sample, as the networks' configs name them."""
    batch = dataset.samples.read_batch(np.zeros(1, np.int64), BufferPool())
    named = {"input_dim": "sequence", "node_dim": "nodes", "edge_dim": "edge_attr"}
    sizes = {size: batch[name].shape[-1] for size, name in named.items() if name in batch}
    if "max_tokens" in batch:
        sizes["layers"] = len(batch["nodes"]) // int(batch["node_counts"][0])
    return sizes


def _own_gpu() -> torch.device:
    """The device of this process: the engine chose it before batches are opened."""
    return torch.device("cuda", torch.cuda.current_device())


def hash_questions(splits: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """A hash of the labels and question ids of every split."""
    parts: list[str] = []
    for name, (labels, question_ids) in splits.items():
        parts += [name, np.packbits(labels > 0.5).tobytes().hex(), *map(str, question_ids)]
    return hash_text(*parts)[:_HASH_LETTERS]


def refuse_thin(
    name: str, balance: Mapping[str, Balance], splits: Iterable[str] = SPLIT_NAMES
) -> None:
    """Raises InputError if one of the splits does not have both classes."""
    thin = [s for s in splits if not (balance[s].correct and balance[s].hallucinated)]
    if not thin:
        return
    found = balance[thin[0]]
    lacking = f"has no {'hallucinated' if found.correct else 'correct'} answers"
    counts = ", ".join(
        f"{split} {of.samples:,} ({of.correct:,} correct, {of.hallucinated:,} hallucinated)"
        for split, of in balance.items()
    )
    raise InputError(
        f'the {thin[0]} split of "{name}" {lacking if found.samples else "is empty"}, but both '
        f"classes are required to {_PURPOSE[thin[0]]} it. Its samples: {counts}. Use more "
        'questions, or run "clew preprocess" with another `score_threshold` or `split`.'
    )


def score_samples(
    detector_folder: Path, source: DataSource, split: str, *, device: str | None = None
) -> Scores:
    """Predict the risk of each answer of a split with a trained network, which may have been
    trained on other questions.

    Raises InputError for samples that the network cannot read, such as those of another model.
    """
    detector = load_detector(detector_folder, device or plan_hardware().device)
    kind = NETWORKS[detector.name]
    source.refuse_missing([kind])
    dataset = source.open(kind.samples, split)
    if not len(dataset):
        return np.zeros(0, np.float32)
    for size, found in read_sizes(dataset).items():
        trained = getattr(detector.config, size, found)
        if trained != found:
            raise InputError(
                f"{detector.name} was trained on samples with {size} {trained}, but those of "
                f'"{source.name}" have {found}: they come from another model or other settings.'
            )
    return score_batches(detector, Loader(dataset, _BATCH, rank=Rank()))


def score_batches(detector: Detector, batches: Iterable[Any]) -> Scores:
    """Probabilities in the order of the batches; raises StoreError for non-finite ones."""
    device = next(detector.network.parameters()).device
    parts = [detector.score(move(batch, device)) for batch in batches]
    scores = torch.cat(parts).cpu().numpy()
    wrong = int((~np.isfinite(scores)).sum())
    if wrong:
        raise StoreError(
            f"{detector.name} returns a non-finite risk (NaN or infinity) for {wrong:,} of "
            f'{len(scores):,} samples: their data may be non-finite. Re-create them with "clew '
            'preprocess".'
        )
    return scores
