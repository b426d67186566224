"""Detector files of every network, as small as they can be."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from clew.engine.model_files import write_model
from clew.hallucination.detectors.registry import NETWORKS

_LSTM = {"input_dim": 4, "lstm_hidden": 4, "num_lstm_layers": 1}
SIZES: dict[str, dict[str, int]] = {
    "lstm": _LSTM,
    "gnn_det": {**_LSTM, "node_dim": 3, "gnn_hidden": 4},
    "gvae": {**_LSTM, "node_dim": 3, "gnn_hidden": 4, "latent_dim": 2},
    "charm": {"node_dim": 3, "edge_dim": 2, "gnn_hidden": 4},
    "act_vit": {"layers": 2, "node_dim": 3, "width": 8, "encoder_layers": 1, "heads": 2},
}


def write_detector(path: Path, name: str) -> Path:
    """An untrained detector, described as "clew train" does."""
    torch.manual_seed(0)
    kind = NETWORKS[name]
    config = kind.config(**SIZES[name])
    weights = {f"network.{key}": value for key, value in kind.network(config).state_dict().items()}
    about: dict[str, Any] = {
        "clew": "0.1",
        "settings": {"network": name, "network_config": asdict(config)},
        "best": {"epoch": 1, "metrics": {"auroc": 0.9, "f1": None}, "threshold": 0.4},
    }
    write_model(path, weights, about)
    return path
