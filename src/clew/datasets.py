"""Training samples for PyTorch: streamed, by index, or as whole batches from clew's own loader."""

from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.datasets import (
    PreprocessedGNNDataset,
    PreprocessedGNNMapDataset,
    PreprocessedGridsMapDataset,
    PreprocessedHeadsMapDataset,
    PreprocessedLSTMDataset,
    PreprocessedLSTMMapDataset,
)
from clew.hallucination.samples.graph_batches import GraphSample, collate
from clew.hallucination.samples.raw import RawGNNDataset, RawLSTMDataset
from clew.hallucination.samples.resident import ResidentSamples
from clew.loading.loader import Loader
from clew.loading.order import Rank
from clew.loading.splits import SPLIT_NAMES

__all__ = [
    "SPLIT_NAMES",
    "AnswerFeatures",
    "GraphSample",
    "Loader",
    "PreprocessedGNNDataset",
    "PreprocessedGNNMapDataset",
    "PreprocessedGridsMapDataset",
    "PreprocessedHeadsMapDataset",
    "PreprocessedLSTMDataset",
    "PreprocessedLSTMMapDataset",
    "Rank",
    "RawGNNDataset",
    "RawLSTMDataset",
    "ResidentSamples",
    "collate",
]
