"""ACT-ViT (arXiv 2510.00296): the states of all layers and tokens as an image of fixed size,
divided into patches for a small vision transformer. A batch holds the concatenated grids of all
answers. Every cell of the image is the maximum over a window of layers and tokens, as in PyTorch's
adaptive max pooling.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clew.base.errors import InputError
from clew.base.settings import MAX_LAYERS, check_fraction, check_positive, check_sizes
from clew.hallucination.detectors.networks.graphs import pad_rows, round_up
from clew.hallucination.detectors.networks.lstm import scale

_GRID, _PATCH = (8, 100), (2, 10)
_ROWS, _COLUMNS = _GRID[0] // _PATCH[0], _GRID[1] // _PATCH[1]


@dataclass(frozen=True, kw_only=True)
class ActViTConfig:
    """Hyperparameters of an ACT-ViT detector: first the dimensions of the data, then those of the
    network."""

    layers: int
    node_dim: int
    width: int = 256
    encoder_layers: int = 4
    heads: int = 8
    dropout: float = 0.3

    def __post_init__(self) -> None:
        check_sizes(self, "node_dim", "width", "heads")
        check_positive(self, "layers", "encoder_layers", most=MAX_LAYERS)
        check_fraction(self, "dropout")
        if self.width % self.heads:
            raise InputError(
                f"width is {self.width}, which is not divisible by {self.heads} heads: use a "
                f"multiple of {self.heads}."
            )


class ActViTDetector(nn.Module):
    """Takes a batch with `nodes` of all layers and tokens; returns logits `[batch]`."""

    def __init__(self, config: ActViTConfig) -> None:
        super().__init__()
        self.config = config
        self.patches = PatchEmbedding(config.node_dim, config.width)
        self.first = nn.Parameter(0.02 * torch.randn(1, 1, config.width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 1 + _ROWS * _COLUMNS, config.width))
        self.dropout = nn.Dropout(config.dropout)
        blocks = (_block(config) for _ in range(config.encoder_layers))
        self.encoder = nn.Sequential(*blocks, nn.LayerNorm(config.width))
        self.head = nn.Linear(config.width, 1)

    def forward(self, batch: Mapping[str, Any]) -> Float[Tensor, " batch"]:
        picture = pool_grids(
            batch["nodes"],
            batch["node_counts"],
            layers=self.config.layers,
            max_tokens=batch["max_tokens"],
            size=_GRID,
        )
        patches = self.patches(scale(picture))
        read = torch.cat([self.first.expand(len(patches), -1, -1).to(patches), patches], dim=1)
        return self.head(self.encoder(self.dropout(read + self.places))[:, 0]).squeeze(1)

    def pad_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return pad_grids(batch, _GRID[1])


class PatchEmbedding(nn.Module):
    """A linear map of every cell, then a second one of the cells of a patch. Their composition is
    linear too and is computed first, once per batch: then no cell is ever expanded to `width`, a
    quarter of the work.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.cell = nn.Linear(features, width)
        self.patch = nn.Linear(_PATCH[0] * _PATCH[1] * width, width)

    def forward(
        self, picture: Float[Tensor, "batch rows columns features"]
    ) -> Float[Tensor, "batch patches width"]:
        parts = self.patch.weight.unflatten(1, (-1, self.cell.out_features))
        weight = (parts @ self.cell.weight).flatten(1)
        bias = self.patch.bias + parts.sum(1) @ self.cell.bias
        cut = picture.unflatten(2, (_COLUMNS, _PATCH[1])).unflatten(1, (_ROWS, _PATCH[0]))
        cells = cut.transpose(2, 3).flatten(1, 2).flatten(2)
        return nn.functional.linear(cells.to(weight.dtype), weight, bias)


def _block(config: ActViTConfig) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        config.width,
        config.heads,
        2 * config.width,
        config.dropout,
        activation="gelu",
        batch_first=True,
        norm_first=True,
    )


@torch.no_grad()
def pool_grids(
    states: Float[Tensor, "states features"],
    token_counts: Int[Tensor, " batch"],
    *,
    layers: int,
    max_tokens: int,
    size: tuple[int, int],
) -> Float[Tensor, "batch rows columns features"]:
    """The states are ordered by sample, layer and token; no sample has more than `max_tokens`. They
    are data: no gradient flows back."""
    rows, columns = size
    over_layers = _pool_layers(states, token_counts, layers, rows)
    first, last = _windows(token_counts[:, None], columns, states.device)
    begins = (token_counts.cumsum(0) - token_counts)[:, None]
    pooled = _max_over(over_layers, begins + first, begins + last, _widest(max_tokens, columns))
    return pooled.transpose(1, 2)


def pad_grids(batch: Mapping[str, Any], columns: int) -> dict[str, Any]:
    """The same batch with its states padded to one of few sizes, so that a recorded step can be
    reused for the same size. The padding belongs to no sample."""
    count = len(batch["nodes"])
    more = {"nodes": round_up(count) - count}
    return {**pad_rows(batch, more), "max_tokens": -(-batch["max_tokens"] // columns) * columns}


def _pool_layers(
    states: Float[Tensor, "states features"],
    token_counts: Int[Tensor, " batch"],
    layers: int,
    rows: int,
) -> Float[Tensor, "tokens rows features"]:
    """Windows of layers, for every token of the batch. Padding tokens get arbitrary states and are
    ignored."""
    ends = token_counts.cumsum(0)
    token = torch.arange(len(states) // layers, device=states.device)
    sample = torch.searchsorted(ends, token, right=True).clamp(max=len(ends) - 1)
    tokens = token_counts[sample]
    begin = (ends[sample] - tokens) * (layers - 1) + token
    first, last = _windows(layers, rows, states.device)
    return _max_over(
        states,
        begin[:, None] + first * tokens[:, None],
        begin[:, None] + last * tokens[:, None],
        _widest(layers, rows),
        step=tokens[:, None],
    )


def _windows(count: Tensor | int, parts: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """First and last position of each part when `count` positions are divided into parts of equal
    length, which overlap if that is not an integer."""
    part = torch.arange(parts, device=device)
    return part * count // parts, ((part + 1) * count + parts - 1) // parts - 1


def _widest(count: int, parts: int) -> int:
    """The maximum width of a window of up to `count` positions."""
    return min(count, -(-count // parts) + 1)


def _max_over(
    values: Tensor, first: Tensor, last: Tensor, width: int, step: Tensor | int = 1
) -> Tensor:
    """The largest of `values` at first, first + step, ... last: at most `width` of them."""
    largest = values[first]
    for k in range(1, width):
        largest = torch.maximum(largest, values[torch.minimum(first + k * step, last)])
    return largest
