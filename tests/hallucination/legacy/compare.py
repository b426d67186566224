"""Compare stores with the files they were converted from."""

from pathlib import Path
from typing import Any

import numpy as np

from clew.hallucination.traces import Trace
from clew.storage.reader import ShardReader, read_value
from tests.hallucination.legacy.old_files import load_torch_file


def assert_same_arrays(trace: Trace, record: dict[str, Any]) -> None:
    for name in ("hidden_states", "attentions"):
        np.testing.assert_array_equal(trace[name], np.stack(record[name]), strict=True)
    last = np.stack([layer[-1] for layer in record["hidden_states"]])
    np.testing.assert_array_equal(trace["last_hidden"], last, strict=True)
    if trace["prompt_length"] is not None:
        answer = np.stack(record["hidden_states"])[:, trace["prompt_length"] :]
        mean = answer.astype(np.float32).mean(1)
        np.testing.assert_allclose(trace["answer_hidden"], mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(trace["tokens"], record["tokens"])


def assert_graphs_equal(shard: Path, source: Path) -> None:
    """Every array of every layer, cut out of the flat columns by the counts."""
    batch = ShardReader(shard).record_batch(0)
    for row, layers in enumerate(load_torch_file(source)["graphs"]):
        column = {name: read_value(batch.column(name), row) for name in batch.schema.names}
        node_ends = np.cumsum(column["node_counts"])
        edge_ends = np.cumsum(column["edge_counts"])
        for layer, graph in enumerate(layers):
            expected = graph.state["_store"].state["_mapping"]
            nodes = column["nodes"].reshape(node_ends[-1], -1)
            first = node_ends[layer] - len(expected["x"])
            nodes = nodes[first : node_ends[layer]]
            at = slice(edge_ends[layer] - column["edge_counts"][layer], edge_ends[layer])
            edges = [column["edge_source"][at], column["edge_target"][at]]
            np.testing.assert_array_equal(nodes, expected["x"], strict=True)
            np.testing.assert_array_equal(edges, expected["edge_index"] + first)
            np.testing.assert_array_equal(column["edge_attr"][at, None], expected["edge_attr"])
