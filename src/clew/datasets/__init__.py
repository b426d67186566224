"""Training samples for PyTorch: streamed, by place, or as whole batches from clew's own loader."""

from clew.datasets.answers import AnswerFeatures
from clew.datasets.graphs import GraphSample, collate
from clew.datasets.grids import PreprocessedGridsMapDataset
from clew.datasets.heads import PreprocessedHeadsMapDataset
from clew.datasets.lazy import PreprocessedGNNMapDataset, PreprocessedLSTMMapDataset
from clew.datasets.loader import Loader
from clew.datasets.order import Rank
from clew.datasets.raw import RawGNNDataset, RawLSTMDataset
from clew.datasets.resident import ResidentSamples
from clew.datasets.stream import PreprocessedGNNDataset, PreprocessedLSTMDataset

__all__ = [
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
