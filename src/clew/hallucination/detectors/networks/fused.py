"""The sums of messages as one GPU kernel: a message never leaves the registers. Without it every
message is written and read several times; with it a step only moves the nodes and edges, an order
of magnitude less.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

_NEIGHBORS_AT_ONCE = 16


@triton.jit
def _sum_kernel(
    values, nodes, attr, mask, weight, bias, sums, slopes, width, features,
    NEIGHBORS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """One row per program: a block of neighbors at a time, all features in parallel."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, FEATURES)
    is_column = column < features
    w = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    total = tl.zeros((FEATURES,), tl.float32)
    by_weight = tl.zeros((FEATURES,), tl.float32)
    by_bias = tl.zeros((FEATURES,), tl.float32)
    for start in range(0, width, NEIGHBORS):
        k = start + tl.arange(0, NEIGHBORS)
        place = row * width + k
        real = tl.load(mask + place, mask=k < width, other=0) != 0
        node = tl.load(nodes + place, mask=real, other=0).to(tl.int64)
        edge = tl.load(attr + place, mask=real, other=0.0).to(tl.float32)[:, None]
        inside = real[:, None] & is_column[None, :]
        at = node[:, None] * features + column[None, :]
        near = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
        message = near + edge * w[None, :] + b[None, :]
        passes = inside & (message > 0.0)
        total += tl.sum(tl.where(passes, message, 0.0), axis=0)
        by_weight += tl.sum(tl.where(passes, edge, 0.0), axis=0)
        by_bias += tl.sum(tl.where(passes, 1.0, 0.0), axis=0)
    tl.store(sums + row * features + column, total, mask=is_column)
    tl.store(slopes + row * 2 * features + column, by_weight, mask=is_column)
    tl.store(slopes + (row * 2 + 1) * features + column, by_bias, mask=is_column)


def sum_messages(
    values: Float[Tensor, "nodes features"],
    nodes: Int[Tensor, "rows width"],
    attr: Float[Tensor, "rows width 1"],
    mask: Bool[Tensor, "rows width"],
    weight: Float[Tensor, "features 1"],
    bias: Float[Tensor, " features"],
) -> tuple[Float[Tensor, "rows features"], Float[Tensor, "rows 2 features"]]:
    """The sum over each row's neighbors of relu(values + edge * weight + bias), and its derivatives
    with respect to weight and bias."""
    rows, width = nodes.shape
    features = values.shape[1]
    sums = values.new_empty((rows, features))
    slopes = values.new_empty((rows, 2, features))
    given = (values, nodes, attr, mask.view(torch.uint8), weight, bias)
    _sum_kernel[(rows,)](
        *(part.contiguous() for part in given), sums, slopes, width, features,
        NEIGHBORS=_NEIGHBORS_AT_ONCE, FEATURES=triton.next_power_of_2(features), num_warps=2,
    )  # fmt: skip
    return sums, slopes
