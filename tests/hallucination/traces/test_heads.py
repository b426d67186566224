"""What is stored per head equals a plain computation, whatever the lengths in a batch."""

import numpy as np
import torch

from clew.hallucination.capture.job import trace_bytes
from clew.hallucination.traces.compact import Reduced, reduce_heads
from clew.hallucination.traces.schema import TraceShape

SHAPE = TraceShape(layers=2, dim=4, heads=3, node_dim=1, edges_per_token=1)
TOKENS, PROMPTS, EIGENVALUES = [7, 40, 25, 12], [4, 30, 0, 12], 25


def record(logs: list[np.ndarray], laplacians: list[np.ndarray]) -> Reduced:
    fields = dict.fromkeys(Reduced.__dataclass_fields__, torch.empty(0))
    diagonals = {"attention_log_diagonal": pad(logs), "laplacian_diagonal": pad(laplacians)}
    return Reduced(**{**fields, **diagonals})


def pad(arrays: list[np.ndarray]) -> torch.Tensor:
    """With zeros after the tokens of each."""
    width = max(TOKENS)
    padded = [np.pad(one, [(0, 0), (0, 0), (0, width - one.shape[-1])]) for one in arrays]
    return torch.from_numpy(np.stack(padded))


def test_means_and_largest_eigenvalues_of_a_ragged_batch() -> None:
    random = np.random.default_rng(0)
    sizes = [(SHAPE.layers, SHAPE.heads, tokens) for tokens in TOKENS]
    logs = [np.float32(-5 * random.random(size)) for size in sizes]
    laplacians = [np.float32(random.random(size) - 0.6) for size in sizes]
    found = reduce_heads(record(logs, laplacians), TOKENS, PROMPTS, EIGENVALUES)
    for row, (log, laplacian) in enumerate(zip(logs, laplacians, strict=True)):
        prompt, answer = PROMPTS[row], max(1, TOKENS[row] - PROMPTS[row])
        largest = np.zeros((SHAPE.layers, SHAPE.heads, EIGENVALUES))
        falling = -np.sort(-laplacian)[..., :EIGENVALUES]
        largest[..., : falling.shape[-1]] = falling
        expected = {
            "log_diagonal_all": log.mean(-1),
            "log_diagonal_answer": log[..., prompt:].sum(-1) / answer,
            "laplacian_top": largest,
            "laplacian_answer": laplacian[..., prompt:].sum(-1) / answer,
        }
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert found[name].dtype == torch.float16
            np.testing.assert_allclose(found[name][row], values, atol=3e-3, err_msg=name)


def test_a_compact_trace_of_a_7b_model_takes_less_than_a_megabyte() -> None:
    shape = TraceShape(layers=32, dim=4096, heads=32, node_dim=64, edges_per_token=16)
    assert trace_bytes(shape, "compact", 16, tokens=62) < 1e6
    assert trace_bytes(shape, "compact", 8, tokens=62) < 6.2e5
