"""Small batches of graphs and states, and networks for them."""

from typing import Any

import torch
from torch import nn

from clew.hallucination.detectors.networks.act_vit import ActViTConfig, ActViTDetector
from clew.hallucination.detectors.networks.charm import CharmConfig, CharmDetector
from clew.hallucination.detectors.networks.lstm import (
    GNNLSTMConfig,
    GNNLSTMDetector,
    GVAELSTMConfig,
    GVAELSTMDetector,
    LSTMConfig,
    LSTMDetector,
)

DIM, FEATURES = 12, 6
LAYERS, HEADS = 4, 8
NETWORKS = ("lstm", "gnn_det", "gvae", "charm", "act_vit")


def make_batch(
    samples: int = 5,
    layers: int = 4,
    *,
    max_tokens: int = 9,
    max_degree: int = 3,
    edge_dim: int = 1,
) -> dict[str, Any]:
    """Causal graphs of samples of different lengths, flat, as clew's loader returns them."""
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


def make_grids(
    samples: int = 5, layers: int = LAYERS, *, max_tokens: int = 9, features: int = FEATURES
) -> dict[str, Any]:
    """Grids of layers by tokens, of samples of different lengths."""
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, max_tokens + 1, (samples,), generator=random)
    return {
        "nodes": torch.randn(int(tokens.sum()) * layers, features, generator=random).half(),
        "node_counts": tokens,
        "max_tokens": int(tokens.max()),
        "label": (torch.arange(samples) % 2).float(),
    }


def make_heads(samples: int = 5, *, max_tokens: int = 9) -> dict[str, Any]:
    """Causal graphs over all heads; the second sample has no answer, the first token no edge."""
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(2, max_tokens + 1, (samples,), generator=random)
    first, pairs, is_answer = 0, [], []
    for number, count in enumerate(tokens.tolist()):
        seen = torch.rand(count, count, generator=random).tril(-1) > 0.4
        pairs.append(seen.nonzero() + first)
        is_answer.append(torch.arange(count) >= (count if number == 1 else count // 2))
        first += count
    target, source = torch.cat(pairs).int().T
    attention = torch.rand(len(source), HEADS, generator=random)
    marks = torch.randint(2, (len(source), 2), generator=random)
    return {
        "nodes": torch.rand(first, HEADS, generator=random).half(),
        "edge_source": source.contiguous(),
        "edge_target": target.contiguous(),
        "edge_attr": torch.cat([attention, marks], dim=1).half(),
        "node_graph": torch.arange(samples).repeat_interleave(tokens),
        "is_answer": torch.cat(is_answer),
        "node_counts": tokens,
        "label": (torch.arange(samples) % 2).float(),
    }


def make_batch_for(name: str, samples: int = 5) -> dict[str, Any]:
    makers = {"charm": make_heads, "act_vit": make_grids}
    return makers.get(name, make_batch)(samples)


def make_network(name: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    if name == "charm":
        sizes = {"node_dim": HEADS, "edge_dim": HEADS + 2, "gnn_hidden": 7, **settings}
        return CharmDetector(CharmConfig(**sizes))
    if name == "act_vit":
        sizes = {"width": 8, "heads": 2, "encoder_layers": 2, **settings}
        return ActViTDetector(ActViTConfig(layers=LAYERS, node_dim=FEATURES, **sizes))
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
