"""Small batches of graphs and states, and the networks over them."""

from typing import Any

import torch
from torch import nn

from clew.models import (
    GNNLSTMConfig,
    GNNLSTMDetector,
    GVAELSTMConfig,
    GVAELSTMDetector,
    LSTMConfig,
    LSTMDetector,
)

DIM, FEATURES = 12, 6


def make_batch(
    samples: int = 5,
    layers: int = 4,
    *,
    max_tokens: int = 9,
    max_degree: int = 3,
    edge_dim: int = 1,
) -> dict[str, Any]:
    """Causal graphs of samples of different lengths, flat, as clew's loader gives them."""
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, max_tokens + 1, (samples,), generator=random)
    source, target, last, first = [], [], [], 0
    for count in tokens.tolist():
        for _ in range(layers):
            for token in range(count):
                seen = torch.randperm(token + 1, generator=random)[:max_degree]
                source.append(first + seen)
                target.append(torch.full_like(seen, first + token))
            first += count
            last.append(first - 1)
    edges = torch.cat(source)
    return {
        "nodes": torch.randn(first, FEATURES, generator=random).half(),
        "edge_source": edges.int(),
        "edge_target": torch.cat(target).int(),
        "edge_attr": torch.rand(len(edges), edge_dim, generator=random).half(),
        "last_node": torch.tensor(last).view(samples, layers),
        "max_degree": max_degree,
        "sequence": 100 * torch.randn(samples, layers, DIM, generator=random).half(),
        "label": (torch.arange(samples) % 2).float(),
    }


def make_network(name: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"input_dim": DIM, "lstm_hidden": 8, **settings}
    if name == "lstm":
        return LSTMDetector(LSTMConfig(**sizes))
    sizes |= {"node_dim": FEATURES, "gnn_hidden": 7, **settings}
    if name == "gnn_det":
        return GNNLSTMDetector(GNNLSTMConfig(**sizes))
    return GVAELSTMDetector(GVAELSTMConfig(latent_dim=5, **sizes))


def logits_of(network: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    answer = network(batch)
    return answer[0] if isinstance(answer, tuple) else answer
