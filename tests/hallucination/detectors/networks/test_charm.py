"""CHARM's messages and readout equal a plain loop and PyG; invariances."""

from typing import Any

import pytest
import torch
from torch_geometric.nn import MessagePassing

from clew.base.errors import InputError
from clew.hallucination.detectors.networks.charm import (
    CharmConfig,
    HeadEdges,
    MeanMessages,
    stretch,
)
from tests.hallucination.detectors.networks.making import make_heads, make_network

HIDDEN = 7


class MeanOfMLP(MessagePassing):
    """The mean over neighbors of MLP([x_j, e]), as defined."""

    def __init__(self, given: MeanMessages) -> None:
        super().__init__(aggr="mean")
        self.weight = torch.cat([given.neighbor.weight, given.edge.weight], dim=1)
        self.bias, self.out = given.edge.bias, given.out

    def message(self, x_j: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
        both = torch.cat([x_j, edge_attr], dim=1)
        return self.out(torch.relu(both @ self.weight.T + self.bias))

    def forward(self, nodes: torch.Tensor, edges: HeadEdges) -> torch.Tensor:
        index = torch.stack([edges.source, edges.target]).long()
        return self.propagate(index, x=nodes, edge_attr=edges.attr, size=(len(nodes), len(nodes)))


def edges_of(batch: dict[str, Any]) -> HeadEdges:
    return HeadEdges(
        source=batch["edge_source"],
        target=batch["edge_target"],
        attr=batch["edge_attr"].float(),
    )


def test_messages_equal_those_of_pyg_in_values_and_gradients() -> None:
    torch.manual_seed(0)
    edges = edges_of(make_heads())
    nodes = torch.randn(len(make_heads()["nodes"]), HIDDEN)
    messages = MeanMessages(HIDDEN, edges.attr.shape[1])
    results = []
    for way in (messages, MeanOfMLP(messages)):
        given = nodes.clone().requires_grad_()
        messages.zero_grad()
        heard = way(given, edges)
        heard.square().sum().backward()
        grads = [p.grad.clone() for p in messages.parameters()]
        results.append([heard.detach(), given.grad, *grads])
    for mine, theirs in zip(*results, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_messages_equal_a_plain_loop_over_the_edges() -> None:
    batch = make_heads()
    edges, messages = edges_of(batch), MeanMessages(HIDDEN, batch["edge_attr"].shape[1])
    nodes = torch.randn(len(batch["nodes"]), HIDDEN)
    heard = messages(nodes, edges)
    for node in range(len(nodes)):
        mine = [
            messages.out(torch.relu(messages.neighbor(nodes[source]) + messages.edge(attr)))
            for source, target, attr in zip(edges.source, edges.target, edges.attr, strict=True)
            if target == node
        ]
        expected = torch.stack(mine).mean(0) if mine else torch.zeros(HIDDEN)
        assert torch.allclose(heard[node], expected, atol=1e-5)


def test_padding_a_batch_changes_nothing() -> None:
    batch, network = make_heads(7), make_network("charm").eval()
    padded = network.pad_batch(batch)
    assert len(padded["nodes"]) > len(batch["nodes"])
    assert len(padded["edge_source"]) > len(batch["edge_source"])
    assert (padded["edge_target"].diff() >= 0).all()
    assert torch.allclose(network(padded), network(batch), atol=1e-6)


def test_order_of_tokens_edges_and_samples_changes_nothing() -> None:
    batch, network = make_heads(), make_network("charm").eval()
    place = torch.randperm(len(batch["nodes"]))  # where each token goes
    order, edges = place.argsort(), torch.randperm(len(batch["edge_source"]))
    samples = torch.randperm(5)
    moved = {
        "nodes": batch["nodes"][order],
        "edge_source": place[batch["edge_source"].long()][edges],
        "edge_target": place[batch["edge_target"].long()][edges],
        "edge_attr": batch["edge_attr"][edges],
        "node_graph": samples[batch["node_graph"]][order],
        "is_answer": batch["is_answer"][order],
        "node_counts": batch["node_counts"][samples.argsort()],
    }
    assert torch.allclose(network(moved)[samples], network(batch), atol=1e-5)


def test_only_tokens_with_a_path_to_the_answer_matter() -> None:
    """The last token is in the answer: no edge leads from it to another."""
    batch, network = make_heads(1), make_network("charm").eval()
    batch["is_answer"][:] = False
    batch["is_answer"][0] = True  # attends to none
    changed = {**batch, "nodes": batch["nodes"].clone()}
    changed["nodes"][1:] = 0.5
    assert torch.equal(network(changed), network(batch))
    changed["nodes"][0] = 0.5
    assert not torch.equal(network(changed), network(batch))


def test_graphs_without_edges_are_read() -> None:
    batch = make_heads()
    for name in ("edge_source", "edge_target", "edge_attr"):
        batch[name] = batch[name][:0]
    network = make_network("charm")
    assert network(batch).isfinite().all()
    assert network(network.pad_batch(batch)).isfinite().all()


def test_attention_is_scaled_logarithmically() -> None:
    ends = stretch(torch.tensor([0.0, 0.01, 0.1, 1.0]))
    assert torch.allclose(ends[[0, 3]], torch.tensor([-2.0, 2.0]), atol=1e-5)
    assert ends[2] - ends[1] == pytest.approx((ends[3] - ends[2]).item(), rel=0.05)


@pytest.mark.parametrize("rounds", [1, 3])
def test_number_of_rounds_is_configurable(rounds: int) -> None:
    network = make_network("charm", rounds=rounds)
    assert len(network.rounds) == rounds
    assert network(make_heads()).shape == (5,)


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(InputError, match="rounds is 0: it must be 1 or more"):
        CharmConfig(node_dim=4, edge_dim=6, rounds=0)
