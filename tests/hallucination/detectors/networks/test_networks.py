"""What holds for all networks: shapes, learning, saving, and invalid settings."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from clew.base.errors import InputError
from clew.hallucination.detectors.networks.lstm import GVAELSTMConfig, LSTMConfig
from tests.hallucination.detectors.networks.making import (
    NETWORKS,
    logits_of,
    make_batch,
    make_batch_for,
    make_network,
)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("samples", [1, 5])
def test_network_returns_one_logit_per_sample(name: str, samples: int) -> None:
    logits = logits_of(make_network(name), make_batch_for(name, samples))
    assert logits.shape == (samples,)
    assert logits.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_loss_falls_on_one_batch(name: str) -> None:
    network, batch = make_network(name, dropout=0.0), make_batch_for(name, 8)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        loss = F.binary_cross_entropy_with_logits(logits_of(network, batch), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 < losses[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_every_weight_is_trained(name: str) -> None:
    network, batch = make_network(name), make_batch_for(name, 8)
    answer = network(batch)
    logits, extra = answer if isinstance(answer, tuple) else (answer, {})
    (logits.square().sum() + sum(extra.values())).backward()
    idle = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert not idle


@pytest.mark.parametrize("name", NETWORKS)
def test_saved_network_can_be_loaded(name: str, tmp_path: Path) -> None:
    network, batch = make_network(name).eval(), make_batch_for(name)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    other = make_network(name).eval()
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    assert torch.equal(logits_of(other, batch), logits_of(network, batch))


@pytest.mark.parametrize("name", ["lstm", "gnn_det", "gvae"])
def test_states_of_any_magnitude_are_read(name: str) -> None:
    """States can be tens of thousands in one layer and hundredths in another."""
    network, batch = make_network(name).eval(), make_batch()
    expected = logits_of(network, batch)
    sizes = torch.tensor([0.05, 1.0, 20.0, 150.0])[:, None]
    stretched = {**batch, "sequence": (batch["sequence"].float() * sizes).half()}
    assert torch.allclose(logits_of(network, stretched), expected, atol=5e-3)


def test_latent_losses_are_reported_with_their_weights() -> None:
    network, batch = make_network("gvae", kl_weight=0.0).eval(), make_batch()
    _, extra = network(batch)
    assert extra["kl"].item() == 0
    assert extra["reconstruction"].item() > 0
    heavier = make_network("gvae", reconstruction_weight=1.0).eval()
    assert torch.isclose(heavier(batch)[1]["reconstruction"], 10 * extra["reconstruction"])


def test_latent_trajectory_has_one_point_per_layer() -> None:
    batch = make_batch(5, layers=4)
    path = make_network("gvae").eval().latent_path(batch)
    assert path.shape == (5, 4, 5)
    assert len(path.detach().flatten(0, 1).unique(dim=0)) == 20


@pytest.mark.parametrize(
    ("config", "settings", "said"),
    [
        (LSTMConfig, {"lstm_hidden": 0}, "lstm_hidden is 0: it must be 1 or more"),
        (LSTMConfig, {"dropout": 1.0}, "dropout is 1.0: it must be at least 0 and less than 1"),
        (
            GVAELSTMConfig,
            {"node_dim": 6, "kl_weight": -1.0},
            "kl_weight is -1.0: it must be 0 or more",
        ),
        (GVAELSTMConfig, {"node_dim": 6, "kl_weight": math.nan}, "kl_weight is nan: it must be 0"),
    ],
)
def test_invalid_settings_are_rejected(config, settings, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=said):
        config(input_dim=12, **settings)
