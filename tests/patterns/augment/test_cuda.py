"""The GPU kernels give the same results as plain PyTorch."""

import pytest
import torch

from clew.patterns.augment import AugmentConfig, RandAugment
from clew.patterns.augment.operations import apply_changes
from tests.patterns.augment.test_layers import picture

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("side", [8, 32, 100, 128, 224])
@pytest.mark.parametrize(("magnitude", "crop"), [(9, None), (30, None), (9, 0.35)])
def test_kernels_augment_images_like_pytorch(side: int, magnitude: int, crop: float | None) -> None:
    from clew.patterns.augment.fused import apply_fused

    images = torch.cat([picture(side, seed) for seed in range(40)]).cuda()
    augment = RandAugment(AugmentConfig(ops=3, magnitude=magnitude, flip=True, crop=crop)).cuda()
    parameters, mirrored = augment.draw(len(images))
    mine = apply_fused(images, parameters, mirrored, torch.float32)
    theirs = apply_changes(images.cpu(), parameters.cpu(), mirrored.cpu())
    apart = (mine.cpu() - theirs).abs()
    assert apart.mean() < 1e-4
    assert (apart > 0.02).float().mean() < 1e-3  # at a step edge rounding may decide


def test_cuda_graph_draws_new_random_numbers_on_every_replay() -> None:
    images = picture(64).expand(8, -1, -1, -1).contiguous().cuda()
    augment = RandAugment(AugmentConfig()).cuda()
    for _ in range(2):
        augment(images)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        seen = augment(images)
    graph.replay()
    first = seen.clone()
    graph.replay()
    assert not torch.equal(seen, first)
