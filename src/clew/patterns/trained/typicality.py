"""`UnknownModel.typicality` as a module of operations that every runtime has, to be exported with a
network. Exporting checks that it gives the same numbers."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.patterns.trained.unknown import LEVELS, TOLERATED_ELSEWHERE, UnknownModel


class Typicality(nn.Module):
    """Takes features `[batch, features]`; returns how typical each photo is, `[batch]`."""

    center: Tensor
    axes: Tensor
    points: Tensor
    directions: Tensor
    weights: Tensor
    scales: Tensor
    levels: Tensor
    shares: Tensor

    def __init__(self, unknown: UnknownModel) -> None:
        super().__init__()
        space = unknown.space
        self.neighbors = min(space.neighbors, len(space.points))
        arrays = {
            "center": space.center,
            "axes": space.axes,
            "points": space.points,
            "directions": space.directions,
            "weights": space.weights,
            "scales": unknown.scales,
            # In ascending order of the distances.
            "levels": unknown.levels[::-1],
            "shares": LEVELS[::-1],
        }
        for name, values in arrays.items():
            self.register_buffer(name, torch.from_numpy(values.astype(np.float32)))

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, " batch"]:
        moved = _to_unit(features) - self.center
        along, squares = moved @ self.axes, (moved @ self.directions).square()
        remaining = moved.square().sum(1) - squares.sum(1)
        total = squares @ self.weights[:-1] + remaining * self.weights[-1]
        elsewhere = (total - along.square().sum(1)).clamp_min(0).sqrt()
        near = self._find_nearest(self.points, along)
        turned = self._find_nearest(_to_unit(self.points), _to_unit(along))
        both = self._standardize(near, 0) + self._standardize(turned, 1)
        far = self._standardize(elsewhere, 3) - TOLERATED_ELSEWHERE
        return self._rank(torch.maximum(self._standardize(both, 2), far))

    def _find_nearest(self, points: Tensor, photos: Tensor) -> Float[Tensor, " batch"]:
        """The mean distance to the nearest points."""
        lengths = photos.square().sum(1, keepdim=True) + points.square().sum(1)
        squares = lengths - 2 * photos @ points.T
        nearest = torch.topk(squares, self.neighbors, dim=1, largest=False).values
        return nearest.clamp_min(0).sqrt().mean(1)

    def _standardize(self, values: Tensor, place: int) -> Tensor:
        return (values - self.scales[place, 0]) / self.scales[place, 1]

    def _rank(self, distances: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """Interpolated between the two nearest levels."""
        after = (distances[:, None] > self.levels).sum(1).clamp(1, len(self.levels) - 1)
        low, high = self.levels[after - 1], self.levels[after]
        part = ((distances - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
        return torch.lerp(self.shares[after - 1], self.shares[after], part)


def _to_unit(values: Tensor) -> Tensor:
    return values / values.square().sum(1, keepdim=True).sqrt().clamp_min(1e-12)
