"""ACT-ViT pools all answers of a batch at once, equal to PyTorch's pooling of each."""

import pytest
import torch
import torch.nn.functional as F

from clew.base.errors import InputError
from clew.hallucination.detectors.networks.act_vit import (
    ActViTConfig,
    PatchEmbedding,
    pad_grids,
    pool_grids,
)
from tests.hallucination.detectors.networks.making import FEATURES, make_grids, make_network

SIZE = (8, 100)


@pytest.mark.parametrize("layers", [1, 3, 8, 30, 33])
@pytest.mark.parametrize("max_tokens", [1, 5, 99, 100, 101, 350])
def test_pooling_equals_pytorch_for_each_sample(layers: int, max_tokens: int) -> None:
    batch = make_grids(7, layers, max_tokens=max_tokens)
    counts = batch["node_counts"]
    for given in (batch, pad_grids(batch, SIZE[1])):
        pooled = pool_grids(
            given["nodes"], counts, layers=layers, max_tokens=given["max_tokens"], size=SIZE
        )
        grids = batch["nodes"].split((counts * layers).tolist())
        for mine, grid, tokens in zip(pooled, grids, counts.tolist(), strict=True):
            picture = grid.view(layers, tokens, FEATURES).permute(2, 0, 1)
            expected = F.adaptive_max_pool2d(picture.float(), SIZE).permute(1, 2, 0)
            assert torch.equal(mine.float(), expected)


def test_merged_linear_maps_equal_the_two_maps() -> None:
    embedding, picture = PatchEmbedding(FEATURES, 8), torch.randn(3, *SIZE, FEATURES)
    cells = embedding.cell(picture).view(3, 4, 2, 10, 10, 8)
    expected = embedding.patch(cells.transpose(2, 3).reshape(3, 40, -1))
    assert torch.allclose(embedding(picture), expected, atol=1e-5)


def test_padding_a_batch_changes_nothing() -> None:
    batch, network = make_grids(7), make_network("act_vit").eval()
    padded = network.pad_batch(batch)
    assert len(padded["nodes"]) > len(batch["nodes"])
    assert padded["max_tokens"] == 100
    assert torch.equal(network(padded), network(batch))


def test_score_of_a_sample_does_not_depend_on_its_batch() -> None:
    batch, network = make_grids(6, max_tokens=250), make_network("act_vit").eval()
    together = network(batch)
    grids = batch["nodes"].split((batch["node_counts"] * 4).tolist())
    for number in range(6):
        counts = batch["node_counts"][number : number + 1]
        alone = {"nodes": grids[number], "node_counts": counts, "max_tokens": int(counts)}
        assert torch.allclose(network(alone), together[number], atol=1e-5)


def test_order_of_layers_and_tokens_matters() -> None:
    batch, network = make_grids(1, max_tokens=200), make_network("act_vit").eval()
    turned = {**batch, "nodes": batch["nodes"].flip(0)}
    assert not torch.allclose(network(turned), network(batch), atol=1e-4)


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(InputError, match="width is 10, which is not divisible by 8 heads"):
        ActViTConfig(layers=4, node_dim=6, width=10)
