"""States in 8 bits."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from clew.hallucination.traces.compact import pack
from clew.hallucination.traces.packed import find_finite, unpack, unpack_batch, unpack_column
from clew.hallucination.traces.schema import TraceShape, build_record_batch, reduced_fields

SHAPE = TraceShape(layers=2, dim=70, heads=1, node_dim=6, edges_per_token=2)
FIELDS = reduced_fields(SHAPE, packed=True)[:3]
TOKENS = [3, 1, 4]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 576, 4096])
def test_values_are_off_by_at_most_half_a_step_of_their_block(size: int) -> None:
    values = torch.randn(5, size, generator=torch.Generator().manual_seed(0)).half()
    values[:, 0] = 900.0  # some models have states that are much larger than all others
    found = unpack(pack(values).numpy())
    assert found.shape == values.shape
    for block in range(0, size, 64):
        exact = values[:, block : block + 64].float().numpy()
        gap = np.abs(exact - found[:, block : block + 64])
        assert (gap <= np.abs(exact).max(1, keepdims=True) * (1 / 254 + 2e-3)).all()


@pytest.mark.parametrize("value", [0.0, -0.0, 65504.0, -65504.0, 6e-8, 1e-5])
def test_extreme_values_keep_their_size(value: float) -> None:
    found = unpack(pack(torch.full((1, 64), value).half()).numpy())
    assert np.allclose(found, np.float16(value), rtol=1e-2, atol=0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_found(value: float) -> None:
    states = np.ones((3, 2, 70), np.float16)
    states[1, 1, 69] = value
    column = _column(FIELDS[0], pack(torch.from_numpy(states)).numpy())
    assert find_finite(column, FIELDS[0]).tolist() == [True, False, True]
    found = unpack(pack(torch.from_numpy(states)).numpy())
    assert np.isnan(found[1, 1, 64:]).all()
    assert np.isfinite(np.delete(found.reshape(-1), range(3 * 70 + 64, 4 * 70))).all()


def test_batches_are_unpacked_also_in_parts_and_with_missing_rows() -> None:
    values = {
        "last_hidden": torch.randn(3, 2, 70).half(),
        "answer_hidden": torch.randn(3, 2, 70).half(),
        "nodes": torch.randn(2 * sum(TOKENS), 6).half(),
    }
    packed = {name: pack(one).numpy() for name, one in values.items()}
    batch = build_record_batch(pa.schema(FIELDS), packed, TOKENS, [0] * 3)
    whole, part = unpack_batch(batch), unpack_batch(batch.slice(1, 2))
    assert whole.schema.equals(pa.schema(reduced_fields(SHAPE)[:3]), check_metadata=True)
    assert whole.slice(1, 2).equals(part)
    for name, one in packed.items():
        found = whole.column(name).flatten().to_pylist()
        assert np.array_equal(np.ravel(found), unpack(one).ravel())
    missing = batch.column("nodes").take(pa.array([0, None, 2]))
    lengths = unpack_column(missing, FIELDS[2]).value_lengths().to_pylist()
    assert lengths == [6, None, 8]


def _column(field: pa.Field, packed: np.ndarray) -> pa.Array:
    return build_record_batch(pa.schema([field]), {field.name: packed}, TOKENS, [0] * 3).column(0)
