"""Helpers for tests of batches: which samples they hold, and whether the values are correct."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from clew.datasets import GraphSample
from tests.samples import graph_of, label, question_id, sequence_of

COUNT, LAYERS, DIM, FEATURES, MAX_TOKENS = 105, 3, 8, 5, 7


def places_of(batches: Iterable[Any]) -> list[list[int]]:
    """The indices of the samples, batch by batch."""
    return [batch["index"].tolist() for batch in batches]


def flat(batches: Iterable[Iterable[int]]) -> list[int]:
    return [place for batch in batches for place in batch]


def assert_sequences(batch: dict[str, Any]) -> None:
    """Every value of a batch is that of the sample it names."""
    numbers = batch["index"].tolist()
    expected = np.stack([sequence_of(number, LAYERS, DIM) for number in numbers])
    np.testing.assert_array_equal(batch["sequence"].numpy(), expected, strict=True)
    np.testing.assert_array_equal(batch["label"].numpy(), label(np.array(numbers)), strict=True)
    assert batch["question_id"] == [question_id(number) for number in numbers]


def assert_graph(sample: GraphSample) -> None:
    expected = graph_of(sample.index, LAYERS, FEATURES, MAX_TOKENS)
    edges = np.stack([expected["edge_source"], expected["edge_target"]]).astype(np.int64)
    np.testing.assert_array_equal(sample.nodes, expected["nodes"], strict=True)
    np.testing.assert_array_equal(sample.edge_index, edges, strict=True)
    np.testing.assert_array_equal(sample.edge_attr, expected["edge_attr"], strict=True)
    np.testing.assert_array_equal(sample.node_counts, expected["node_counts"], strict=True)
    np.testing.assert_array_equal(sample.edge_counts, expected["edge_counts"], strict=True)
    assert sample.label == label(np.array(sample.index))
    assert sample.question_id == question_id(sample.index)


def assert_same_batches(found: list[Any], expected: list[Any]) -> None:
    """Bitwise equal, whether dicts of tensors or PyG batches."""
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        assert set(mine.keys()) == set(other.keys())
        for name in mine.keys():  # noqa: SIM118 - a PyG batch iterates over its items
            one, two = mine[name], other[name]
            assert torch.equal(one, two) if torch.is_tensor(one) else one == two, name
