"""Graph batches: 16 samples of 32 graphs (one a layer), 60 tokens of 64 features each.

PyG's `Batch.from_data_list` gets its Data objects ready made in memory, which is generous to it.
"""

from dataclasses import dataclass

import numpy as np

SAMPLES, BATCH, LAYERS, TOKENS, FEATURES, EDGES_A_TOKEN = 256, 16, 32, 60, 64, 16
FIELDS = ("x", "edge_index", "edge_attr", "batch", "ptr")


@dataclass(frozen=True, kw_only=True)
class GraphSample:
    """One sample: nodes [layers, tokens, features], and one edge list a layer.

    `edges[layer]` is int64 [2, edges] with sources not after targets; `weights[layer]` is
    float16 [edges].
    """

    nodes: np.ndarray
    edges: list[np.ndarray]
    weights: list[np.ndarray]


def make_samples(count=SAMPLES):
    generator = np.random.default_rng(0)
    return [make_sample(generator) for _ in range(count)]


def make_sample(generator):
    edges = [pick_edges(generator) for _ in range(LAYERS)]
    return GraphSample(
        nodes=generator.standard_normal((LAYERS, TOKENS, FEATURES)).astype(np.float16),
        edges=edges,
        weights=[generator.random(pair.shape[1]).astype(np.float16) for pair in edges],
    )


def pick_edges(generator):
    """Each token and up to 16 of the tokens that it attends to, itself among them."""
    attention = generator.random((TOKENS, TOKENS))
    attention[np.triu_indices(TOKENS, 1)] = -1
    sources = np.sort(np.argsort(-attention, axis=1)[:, :EDGES_A_TOKEN], axis=1)
    targets = np.repeat(np.arange(TOKENS), EDGES_A_TOKEN)
    pairs = np.stack([sources.ravel(), targets])
    return pairs[:, pairs[0] <= pairs[1]]


class PyG:
    def prepare(self, data, folder):
        """Nothing is stored."""

    def open(self, _data, _folder):
        import torch
        from torch_geometric.data import Data

        self.graphs = [
            [
                Data(
                    x=torch.from_numpy(sample.nodes[layer]),
                    edge_index=torch.from_numpy(sample.edges[layer]),
                    edge_attr=torch.from_numpy(sample.weights[layer][:, None]),
                )
                for layer in range(LAYERS)
            ]
            for sample in make_samples()
        ]

    def collate(self, rows):
        """The batch of the samples `rows`: their graphs, sample by sample, layer by layer."""
        from torch_geometric.data import Batch

        return Batch.from_data_list([graph for row in rows for graph in self.graphs[row]])


def check_equal(mine, rival):
    """Raises unless two batches hold exactly the same."""
    for name in FIELDS:
        one, other = np.asarray(getattr(mine, name)), np.asarray(getattr(rival, name))
        if one.shape != other.shape or one.dtype != other.dtype or not np.array_equal(one, other):
            raise SystemExit(
                f"{name} differs from PyG's: {one.dtype} {one.shape} and {other.dtype} "
                f"{other.shape}"
            )
