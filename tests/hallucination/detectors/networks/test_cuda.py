"""The same on a GPU: one kernel for all messages, and half precision."""

import pytest
import torch

from clew.hallucination.detectors.networks.graphs import Neighbors, _sum_in_pieces
from tests.hallucination.detectors.networks.making import (
    NETWORKS,
    logits_of,
    make_batch_for,
    make_network,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("width", [1, 16, 37])
@pytest.mark.parametrize("features", [6, 64, 100])
def test_fused_kernel_equals_the_separate_steps(width: int, features: int) -> None:
    from clew.hallucination.detectors.networks.fused import sum_messages

    random = torch.Generator().manual_seed(0)
    near = Neighbors(
        nodes=torch.randint(50, (33, width), generator=random).cuda(),
        attr=torch.rand(33, width, 1, generator=random).cuda(),
        mask=(torch.rand(33, width, generator=random) < 0.7).cuda(),
    )
    shapes = ((50, features), (features, 1), (features,))
    values, weight, bias = (torch.randn(s, generator=random).cuda() for s in shapes)
    expected = _sum_in_pieces(values, near, weight, bias)
    for mine, theirs in zip(
        sum_messages(values, near.nodes, near.attr, near.mask, weight, bias), expected, strict=True
    ):
        assert torch.allclose(mine, theirs, atol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_gpu_and_cpu_give_the_same_result(name: str) -> None:
    batch, network = make_batch_for(name), make_network(name, dropout=0.0)
    results = []
    for device in ("cpu", "cuda"):
        network = network.to(device).eval()
        moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        network.zero_grad()
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            logits = logits_of(network.train(), moved)
            logits.square().sum().backward()
        found = [logits.detach(), *(p.grad for p in trained(network))]
        results.append([value.cpu().clone() for value in found])
    for on_cpu, on_gpu in zip(*results, strict=True):
        assert torch.allclose(on_cpu, on_gpu, rtol=1e-3, atol=1e-5)


def trained(network: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [p for p in network.parameters() if p.grad is not None]
