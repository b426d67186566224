"""The networks, one file each, with its settings beside it."""

from clew.models.gnn_lstm import GNNLSTMConfig, GNNLSTMDetector
from clew.models.gvae_lstm import GVAELSTMConfig, GVAELSTMDetector
from clew.models.lstm import LSTMConfig, LSTMDetector

__all__ = [
    "GNNLSTMConfig",
    "GNNLSTMDetector",
    "GVAELSTMConfig",
    "GVAELSTMDetector",
    "LSTMConfig",
    "LSTMDetector",
]
