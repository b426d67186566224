"""`UnknownModel.typicality` as a module of operations that every runtime has, to be exported with a
network. Exporting checks that it gives the same numbers."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.patterns.trained.unknown import LEVELS, WHOLE_TOLERANCE, WHOLE_WEIGHT, UnknownModel


class Typicality(nn.Module):
    """Takes features `[batch, features]`; returns how typical each photo is, `[batch]`."""

    center: Tensor
    axes: Tensor
    points: Tensor
    basis: Tensor
    wholes: Tensor
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
            "basis": space.basis,
            "wholes": space.wholes,
            "scales": unknown.scales,
            # In ascending order of the distances.
            "levels": unknown.levels[::-1],
            "shares": LEVELS[::-1],
        }
        for name, values in arrays.items():
            self.register_buffer(name, torch.from_numpy(values.astype(np.float32)))

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, " batch"]:
        values = _to_unit(features)
        along = (values - self.center) @ self.axes
        turned = _to_unit(along)
        near = self._find_nearest(self.points, along, along.square().sum(1, keepdim=True))
        points, lengths = _to_unit(self.points), turned.square().sum(1, keepdim=True)
        beside = self._find_nearest(points, turned, lengths)
        whole = self._find_nearest(self.wholes, values @ self.basis, torch.ones_like(lengths))
        far = self._standardize(whole, 2)
        both = self._standardize(near, 0) + self._standardize(beside, 1)
        together = self._standardize(both + WHOLE_WEIGHT * far, 3)
        return self._rank(torch.maximum(together, far - WHOLE_TOLERANCE))

    def _find_nearest(
        self, points: Tensor, photos: Tensor, squared: Float[Tensor, "batch 1"]
    ) -> Float[Tensor, " batch"]:
        """The mean distance to the nearest points; `squared` are the photos' squared lengths."""
        squares = squared + points.square().sum(1) - 2 * photos @ points.T
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
