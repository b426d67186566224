"""Samples for both sides: a folder as `clew preprocess` writes it, and one file a sample.

A few different samples are repeated, so that gigabytes are written in seconds; what is read and
computed does not depend on it. Hallucinated answers differ a little along one direction.
"""

import numpy as np
import pyarrow as pa
import torch
from loader_rivals.clew_loader import graph_columns, sequence_columns, write_store
from loader_rivals.graphs import EDGES_A_TOKEN, GraphSample, make_samples

from clew.hallucination.samples.splits import Splits, write_splits
from clew.loading.splits import SPLIT_NAMES

DIFFERENT, SHARD_ROWS = 64, 500
LAYERS, DIM = 32, 4096
SETTINGS = {"command": "preprocess", "top_k": EDGES_A_TOKEN}


class Samples:
    """Sample i is number i % 64; odd ones are hallucinated."""

    def __init__(self, *, dim=DIM, signal=0.05):
        random = np.random.default_rng(0)
        self.graphs = make_samples(DIFFERENT)
        self.sequences = random.standard_normal((DIFFERENT, LAYERS, dim)).astype(np.float32)
        self.sequences[1::2] += signal * random.standard_normal(dim).astype(np.float32)
        self.sequences = self.sequences.astype(np.float16)


class HardSamples:
    """Small ones, all different, that no network tells apart without mistakes."""

    def __init__(self, count, *, layers=8, tokens=12, dim=64, signal=0.08):
        random = np.random.default_rng(0)
        hallucinated = (np.arange(count) % 2)[:, None, None]
        direction = signal * random.standard_normal(dim)
        self.sequences = random.standard_normal((count, layers, dim)) + hallucinated * direction
        self.sequences = self.sequences.astype(np.float16)
        self.graphs = [self._graph(random, layers, tokens) for _ in range(count)]

    def _graph(self, random, layers, tokens):
        causal = np.stack(np.tril_indices(tokens)[::-1])
        return GraphSample(
            nodes=random.standard_normal((layers, tokens, 64)).astype(np.float16),
            edges=[causal] * layers,
            weights=[random.random(causal.shape[1]).astype(np.float16) for _ in range(layers)],
        )


def write_folder(folder, counts, make=None):
    """`counts` samples of training, validation and test."""
    if (folder / "splits.csv").exists():
        return
    total = sum(counts)
    samples = make(total) if make else Samples()
    different = len(samples.graphs)
    starts = range(0, total, SHARD_ROWS)
    numbers = [np.arange(first, min(first + SHARD_ROWS, total)) % different for first in starts]
    sequences = (sequence_columns(samples.sequences[rows]) for rows in numbers)
    write_store(folder / "sequences", "sequences", sequences, SETTINGS)
    graphs = (graph_columns([samples.graphs[i] for i in rows]) for rows in numbers)
    write_store(folder / "graphs", "graphs", graphs, SETTINGS)
    ids = np.arange(total)
    label = (ids % 2).astype(np.float32)
    splits = Splits(
        global_example_id=ids,
        question_id=pa.array([str(i) for i in ids]),
        split=np.repeat(np.arange(len(SPLIT_NAMES), dtype=np.uint8), counts),
        label=label,
        score=1 - label,
    )
    write_splits(folder / "splits.csv", splits)


def write_files(folder, count):
    """Files of one sample each, as the plain way keeps them: its states, and a graph a layer."""
    if folder.exists():
        return
    samples = Samples()
    folder.mkdir(parents=True)
    for number in range(count):
        graph = samples.graphs[number % DIFFERENT]
        states = torch.from_numpy(samples.sequences[number % DIFFERENT]).clone()
        torch.save({"sequence": states, "label": float(number % 2)}, folder / f"{number}.pt")
        graphs = [
            (
                torch.from_numpy(x).clone(),
                torch.from_numpy(edges),
                torch.from_numpy(weights[:, None]),
            )
            for x, edges, weights in zip(graph.nodes, graph.edges, graph.weights, strict=True)
        ]
        torch.save(graphs, folder / f"{number}_graphs.pt")
