"""The splits that networks are trained, validated and tested on, and the risks that a trained
network predicts for them."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from clew.base.errors import InputError, StoreError
from clew.base.texts import bytes_text
from clew.engine import LoadSettings, OpenBatches, plan_hardware
from clew.engine.batches import move
from clew.hallucination.detectors.detector import Detector
from clew.hallucination.detectors.loading import load_detector
from clew.hallucination.detectors.registry import NETWORKS, SampleKind
from clew.hallucination.detectors.training.sources import DataSource
from clew.hallucination.samples.resident import ResidentSamples
from clew.loading.buffers import BufferPool
from clew.loading.loader import Loader
from clew.loading.order import Rank
from clew.loading.reader import SampleReader
from clew.loading.samples import LazyDataset
from clew.loading.splits import SPLIT_NAMES
from clew.storage.hashing import hash_text

logger = logging.getLogger(__name__)
# Samples stay on the GPU if they leave most of its memory to the networks.
_RESIDENT_SHARE = 0.3
_HASH_LETTERS = 16
_PURPOSE = {"train": "train on", "validation": "validate on", "test": "test on"}
_BATCH = 64
Scores = Float32[np.ndarray, " samples"]


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The samples of one split."""

    correct: int
    hallucinated: int

    @classmethod
    def of(cls, labels: np.ndarray) -> "Balance":
        hallucinated = int((labels > 0.5).sum())
        return cls(correct=len(labels) - hallucinated, hallucinated=hallucinated)

    @property
    def samples(self) -> int:
        return self.correct + self.hallucinated


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

    def sizes(self) -> dict[str, int]:
        """The sizes of the arrays, as the networks' configs name them."""
        return read_sizes(self.splits["train"])

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

        return partial(self._open, split)

    def open_whole(self, split: str, settings: LoadSettings) -> Loader:
        """All batches of a split for this process, also in distributed training."""
        return self._open(split, settings, Rank())

    def _open(self, split: str, settings: LoadSettings, rank: Rank | None = None) -> Loader:
        resident = self._bring_to_gpu(split, settings)
        is_read = resident is None
        return Loader(
            self.splits[split] if resident is None else resident,
            settings.batch_size,
            shuffle=settings.shuffle,
            seed=settings.seed,
            num_workers=settings.num_workers if is_read else 0,
            prefetch_factor=settings.prefetch_factor,
            persistent_workers=settings.persistent_workers and is_read,
            pin_memory=settings.pin_memory and is_read,
            max_cache_batches=settings.max_cache_batches,
            rank=rank,
        )

    def let_go(self) -> None:
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
    thin = [
        split for split in splits if not (balance[split].correct and balance[split].hallucinated)
    ]
    if not thin:
        return
    counts = ", ".join(
        f"{split} {of.samples:,} ({of.correct:,} correct, {of.hallucinated:,} hallucinated)"
        for split, of in balance.items()
    )
    raise InputError(
        f'the {thin[0]} split of "{name}" {_lacking(balance[thin[0]])}, but both classes are '
        f"required to {_PURPOSE[thin[0]]} it. Its samples: {counts}. Use more questions, or run "
        '"clew preprocess" with another `score_threshold` or `split`.'
    )


def _lacking(counts: Balance) -> str:
    if not counts.samples:
        return "is empty"
    return f"has no {'hallucinated' if counts.correct else 'correct'} answers"


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
    _refuse_other_sizes(detector, read_sizes(dataset), source.name)
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


def _refuse_other_sizes(detector: Detector, sizes: dict[str, int], name: str) -> None:
    trained = {size: getattr(detector.config, size, found) for size, found in sizes.items()}
    different = [size for size, found in sizes.items() if trained[size] != found]
    if different:
        size = different[0]
        raise InputError(
            f"{detector.name} was trained on samples with {size} {trained[size]}, but those of "
            f'"{name}" have {sizes[size]}: they come from another model or other settings.'
        )
