"""The networks, one file each, with their settings."""

from clew.hallucination.detectors.networks.act_vit import ActViTConfig, ActViTDetector
from clew.hallucination.detectors.networks.charm import CharmConfig, CharmDetector
from clew.hallucination.detectors.networks.gnn_lstm import GNNLSTMConfig, GNNLSTMDetector
from clew.hallucination.detectors.networks.gvae_lstm import GVAELSTMConfig, GVAELSTMDetector
from clew.hallucination.detectors.networks.lstm import LSTMConfig, LSTMDetector

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
