"""The networks, one file each, with its settings beside it."""

from clew.models.act_vit import ActViTConfig, ActViTDetector
from clew.models.charm import CharmConfig, CharmDetector
from clew.models.gnn_lstm import GNNLSTMConfig, GNNLSTMDetector
from clew.models.gvae_lstm import GVAELSTMConfig, GVAELSTMDetector
from clew.models.lstm import LSTMConfig, LSTMDetector

__all__ = [
    "ActViTConfig",
    "ActViTDetector",
    "CharmConfig",
    "CharmDetector",
    "GNNLSTMConfig",
    "GNNLSTMDetector",
    "GVAELSTMConfig",
    "GVAELSTMDetector",
    "LSTMConfig",
    "LSTMDetector",
]
