"""A comparison whose methods are all kept as detectors, made once."""

from pathlib import Path
from typing import Any

import torch

from clew.engine import TrainConfig
from clew.hallucination.comparison import compare_methods
from clew.hallucination.detectors.registry import NetworkSettings
from clew.hallucination.llm.self_evaluation import PHRASINGS, Entailment, SelfEvaluation
from clew.hallucination.traces.compact import Basis, save_basis
from tests.hallucination.comparison.making import compare_config, describe_capture, write_data

NODE_DIM = 5
MODEL = {"id": "tiny", "dtype": "float32", "fingerprint": "ab12", "layers": 3, "dim": 8}
CAPTURE: dict[str, Any] = {
    "model": MODEL,
    "prompt": {"template": "Q: {question} A:", "chat": False},
    "generation": {"max_new_tokens": 8, "num_beams": 1, "cut": "sentence", "samples": 3},
    "questions": {"name": "numbers"},
    "node_dim": NODE_DIM,
    "edges_per_token": 4,
    "self_evaluation": SelfEvaluation(phrasings=PHRASINGS, layers=(1, 2)).describe(),
    "entailment": Entailment().describe(),
}


def write_captured(folder: Path, **changes: Any) -> Path:
    """Samples that say which model and prompt they come from, with their basis."""
    data = write_data(folder, heads=True, rows=60, **changes)
    describe_capture(data, **CAPTURE)
    torch.manual_seed(0)
    basis = Basis(mean=torch.randn(3, 8), components=torch.randn(3, 8, NODE_DIM))
    save_basis(data, basis)
    return data


def compare_all(data: Path, out: Path, **changes: Any) -> Path:
    quick = {"seeds": 1, "train": TrainConfig(epochs=1), "network": NetworkSettings(lstm_hidden=4)}
    compare_methods(compare_config(data, out, keep_detectors="all", **quick | changes))
    return out
