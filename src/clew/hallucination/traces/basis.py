"""The basis that reduces every token's state to a few numbers: principal components per layer.

Fitted once on the first questions and their accepted answers, then frozen and kept in the
store, so that all traces of a store live in the same space.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float
from torch import Tensor

from clew.base.errors import StoreError
from clew.hallucination.traces.schema import BASIS_NAME
from clew.storage.arrow import ARROW_ERRORS, encode_table, read_table
from clew.storage.reading import hash_file
from clew.storage.uploading import write_side_file
from clew.storage.working_copy import fetched


@dataclass(frozen=True, kw_only=True)
class Basis:
    """Projects a layer's states onto its principal components: `(state - mean) @ components`."""

    mean: Float[Tensor, "layers dim"]
    components: Float[Tensor, "layers dim node_dim"]

    @property
    def node_dim(self) -> int:
        return self.components.shape[-1]

    def project(
        self, layer: int, states: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens node_dim"]:
        """Project the states of one layer. Computed on the device in the basis's precision;
        returned in float32."""
        components = self.components[layer]
        centered = states.to(components.dtype) - self.mean[layer]
        return (centered @ components).float()

    def to(self, device: torch.device, dtype: torch.dtype) -> "Basis":
        return Basis(mean=self.mean.to(device, dtype), components=self.components.to(device, dtype))


def fit_basis(states: Iterable[Float[Tensor, "tokens dim"]], node_dim: int) -> Basis:
    """Principal components of each layer's states, padded with zeros if there are fewer."""
    fitted = [_fit_layer(layer, node_dim) for layer in states]
    means, components = zip(*fitted, strict=True)
    return Basis(mean=torch.stack(means).cpu(), components=torch.stack(components).cpu())


def _fit_layer(
    states: Float[Tensor, "tokens dim"], node_dim: int
) -> tuple[Float[Tensor, " dim"], Float[Tensor, "dim node_dim"]]:
    states = states[states.isfinite().all(1)]
    components = torch.zeros(states.shape[1], node_dim, device=states.device)
    if not len(states):
        return components.new_zeros(states.shape[1]), components
    mean = states.mean(0)
    _, _, rows = torch.linalg.svd(states - mean, full_matrices=False)
    rows = _fix_signs(rows[:node_dim])
    components[:, : len(rows)] = rows.T
    return mean, components


def _fix_signs(rows: Float[Tensor, "k dim"]) -> Float[Tensor, "k dim"]:
    """Fix the sign of each component, which is arbitrary: the largest entry becomes positive."""
    largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    return rows * torch.where(largest < 0, -1.0, 1.0)


def save_basis(store: Path, basis: Basis) -> str:
    """Write the basis of a store; returns the SHA-256 of the one that is there, which at a URL may
    be another process's."""
    return write_side_file(store, BASIS_NAME, _encode(basis))


def _encode(basis: Basis) -> bytes:
    layers, dim, node_dim = basis.components.shape
    table = pa.table(
        {
            "mean": _as_lists(basis.mean.numpy(), dim),
            "components": _as_lists(basis.components.reshape(layers, -1).numpy(), dim * node_dim),
        }
    ).replace_schema_metadata({"shape": f"{layers},{dim},{node_dim}"})
    return encode_table(table)


def load_basis(store: Path, sha256: str | None) -> Basis:
    """The basis in a folder, whose hash is known unless an earlier version wrote it; raises
    StoreError if it is missing or damaged."""
    try:
        with fetched(store, BASIS_NAME) as path:
            if sha256 not in (None, hash_file(path)):
                raise ValueError("it has changed since it was written")
            table = read_table(path)
            layers, dim, node_dim = (int(n) for n in table.schema.metadata[b"shape"].split(b","))
            mean = _as_tensor(table["mean"], (layers, dim))
            components = _as_tensor(table["components"], (layers, dim, node_dim))
    except (*ARROW_ERRORS, KeyError, TypeError) as error:
        raise StoreError(
            f"{store / BASIS_NAME} cannot be read ({str(error).splitlines()[0]}): restore it from "
            "a backup of the store, or start a new store with another `out`."
        ) from None
    return Basis(mean=mean, components=components)


def _as_lists(values: np.ndarray, size: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), size)


def _as_tensor(column: pa.ChunkedArray, shape: tuple[int, ...]) -> Tensor:
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=True)
    return torch.from_numpy(flat.copy()).reshape(shape)
