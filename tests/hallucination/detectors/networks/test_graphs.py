"""The graph readout computes only what can be seen from the last tokens. It must equal PyG's
GINEConv on all tokens of all layers, in values and gradients."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_geometric.nn import GINEConv

from clew.hallucination.detectors.networks.graphs import AttentionGraphs, pad_graphs
from clew.hallucination.detectors.networks.lstm import GraphReadout, scale
from tests.hallucination.detectors.networks.making import (
    FEATURES,
    logits_of,
    make_batch,
    make_network,
)


def read_with_pyg(readout: GraphReadout, batch: dict[str, Any]) -> torch.Tensor:
    edge_dim = batch["edge_attr"].shape[1]
    values = {name: value.clone() for name, value in readout.state_dict().items()}
    rounds = [
        GINEConv(readout.first_mlp, edge_dim=edge_dim),
        GINEConv(readout.second_mlp, edge_dim=edge_dim),
    ]
    readout.load_state_dict(values)  # GINEConv has reinitialized the modules it was given
    rounds[0].lin, rounds[1].lin = readout.first_messages.edge, readout.second_messages.edge
    edges = torch.stack([batch["edge_source"], batch["edge_target"]]).long()
    x = scale(batch["nodes"]).float()
    for conv in rounds:
        x = conv(x, edges, batch["edge_attr"].float())
    return x[batch["last_node"].flatten()]


@pytest.mark.parametrize("edge_dim", [1, 3])
@pytest.mark.parametrize("max_tokens", [1, 9, 30])
def test_readout_equals_gine_on_all_tokens(edge_dim: int, max_tokens: int) -> None:
    torch.manual_seed(1)
    batch = make_batch(max_tokens=max_tokens, edge_dim=edge_dim)
    readout = GraphReadout(FEATURES, edge_dim, 7)
    results = []
    for read in (
        lambda: readout(AttentionGraphs.from_batch(batch)).encoding,
        lambda: read_with_pyg(readout, batch),
    ):
        readout.zero_grad()
        encoding = read()
        encoding.square().sum().backward()
        results.append((encoding.detach(), [p.grad.clone() for p in readout.parameters()]))
    (mine, my_grads), (theirs, their_grads) = results
    assert torch.allclose(mine, theirs, atol=1e-6)
    for my_grad, their_grad in zip(my_grads, their_grads, strict=True):
        assert torch.allclose(my_grad, their_grad, rtol=1e-4, atol=1e-5)


def test_messages_computed_in_chunks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, network = make_batch(), make_network("gnn_det", dropout=0.0)
    results = []
    for piece_bytes in (1 << 20, 100):
        monkeypatch.setattr(
            "clew.hallucination.detectors.networks.graphs._CPU_PIECE_BYTES", piece_bytes
        )
        network.zero_grad()
        logits = network(batch)
        logits.sum().backward()
        results.append([logits.detach(), *(p.grad.clone() for p in network.parameters())])
    for whole, in_pieces in zip(*results, strict=True):
        assert torch.allclose(whole, in_pieces, atol=1e-6)


@pytest.mark.parametrize("name", ["gnn_det", "gvae"])
def test_padding_a_batch_changes_nothing(name: str) -> None:
    batch, network = make_batch(7), make_network(name).eval()
    padded = pad_graphs(batch)
    assert len(padded["nodes"]) > len(batch["nodes"])
    assert len(padded["edge_source"]) > len(batch["edge_source"])
    assert torch.equal(logits_of(network, padded), logits_of(network, batch))


def test_batches_are_padded_to_few_sizes_with_little_waste() -> None:
    from clew.hallucination.detectors.networks.graphs import round_up

    sizes = range(50_000, 100_000)
    rounded = {round_up(size) for size in sizes}
    assert len(rounded) <= 9
    assert all(size <= round_up(size) <= size * 1.125 + 1 for size in (0, 1, 7, 1000, *sizes))


def test_pyg_batch_gives_the_same_result_for_any_edge_order() -> None:
    batch, network = make_batch(), make_network("gnn_det").eval()
    order = torch.randperm(len(batch["edge_source"]))
    edges = torch.stack([batch["edge_source"], batch["edge_target"]]).long()
    ends = batch["last_node"].flatten() + 1
    pyg = {
        "x": batch["nodes"],
        "edge_index": edges[:, order],
        "edge_attr": batch["edge_attr"][order],
        "ptr": torch.cat([torch.zeros(1, dtype=torch.int64), ends]),
        "sequence": batch["sequence"],
        "label": batch["label"],
    }
    assert torch.allclose(network(pyg), network(batch), atol=1e-6)


def test_graphs_without_edges_are_read() -> None:
    batch = make_batch()
    for name in ("edge_source", "edge_target", "edge_attr"):
        batch[name] = batch[name][:0]
    assert make_network("gvae")(batch)[0].isfinite().all()


def test_no_message_is_kept_for_the_backward_pass() -> None:
    """What is kept must not grow with edges x features: the messages are recomputed."""
    batch, network = make_batch(20, max_tokens=40, max_degree=30), make_network("gnn_det")
    kept = SimpleNamespace(most=0)

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.most = max(kept.most, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        network(batch)
    first_round = batch["last_node"].numel() * (1 + 30) * 30 * FEATURES
    assert kept.most < first_round / 5
