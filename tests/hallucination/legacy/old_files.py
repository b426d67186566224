"""Tiny legacy files."""

import gzip
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.hallucination.legacy.unpickling import explain_errors, read_torch

LAYERS, DIM, HEADS = 3, 8, 2
PROMPT = ["Answer", ".", " Q", ":", " who", " sang", " A", ":"]
ANSWER = [" Abba", "<|im_end|>"]


def make_record(seed: int = 0, *, dtype: Any = np.float16, **fields: Any) -> dict[str, Any]:
    """A record with causal attention; `fields` are set, or removed if None."""
    random = np.random.default_rng(seed)
    count = len(PROMPT) + len(ANSWER)
    raw = np.tril(random.random((LAYERS, HEADS, count, count)))
    record = {
        "hidden_states": list(random.normal(size=(LAYERS, count, DIM)).astype(dtype)),
        "attentions": list((raw / raw.sum(-1, keepdims=True)).astype(dtype)),
        "tokens": random.integers(0, 1000, count),
        "tokens_decoded": [*PROMPT, *ANSWER],
        "generated_answer_clean": " Abba",
        "question_id": f"q{seed}",
        **fields,
    }
    return {name: value for name, value in record.items() if value is not None}


def write_pickle(path: Path, content: Any, protocol: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pickled = pickle.dumps(content, protocol=protocol)
    path.write_bytes(gzip.compress(pickled) if path.name.endswith(".gz") else pickled)
    return path


def write_traces(folder: Path, batch: int, count: int = 2, ending: str = "pkl.gz") -> Path:
    records = [make_record(100 * batch + i) for i in range(count)]
    return write_pickle(folder / f"trivia_qa_traces_batch_{batch:04d}.{ending}", records)


def write_sequences(path: Path, count: int = 3, dtype: torch.dtype = torch.float16) -> list[Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    sequences = [torch.randn(LAYERS, DIM).to(dtype) for _ in range(count)]
    content = {
        "sequences": sequences,
        "labels": [torch.tensor(float(i % 2)) for i in range(count)],
        "question_ids": [f"q{i}" for i in range(count)],
    }
    torch.save(content, path)
    return sequences


def write_samples(folder: Path, graph_classes: types.ModuleType, files: int = 3) -> None:
    """What the original preprocessing wrote: `lstm_solo/` and `gnn/`, 20 samples per file."""
    for number in range(files):
        samples = range(20 * number, 20 * number + 20)
        about = {
            "labels": [torch.tensor(float(sample % 2)) for sample in samples],
            "question_ids": [f"q{sample}" for sample in samples],
        }
        sequences = [torch.randn(LAYERS, DIM) + sample % 2 for sample in samples]
        graphs = [_make_graphs(graph_classes, 3 + sample % 4) for sample in samples]
        for name, content in (
            ("lstm_solo", {"sequences": sequences, **about}),
            ("gnn", {"graphs": graphs, **about}),
        ):
            (folder / name).mkdir(parents=True, exist_ok=True)
            torch.save(content, folder / name / f"preprocessed_{number:04d}.pt")


def _make_graphs(graph_classes: types.ModuleType, tokens: int) -> list[Any]:
    """One graph per layer, with an edge from each token to the next."""
    edges = torch.stack([torch.arange(tokens - 1), torch.arange(1, tokens)])
    return [
        graph_classes.Data(
            x=torch.randn(tokens, DIM), edge_index=edges, edge_attr=torch.rand(tokens - 1, 1)
        )
        for _ in range(LAYERS)
    ]


def load_torch_file(path: Path) -> Any:
    """What is in a file, read in this process, without limits."""
    with explain_errors(path), path.open("rb") as file:
        return read_torch(file)


class RunsCommand:
    """Pickled as a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, (self.command,)


@pytest.fixture
def graph_classes(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The two classes that graphs are pickled as: torch_geometric's own, or ones like them."""
    try:
        import torch_geometric.data.data as real
    except ImportError:
        return _fake_graph_classes(monkeypatch)
    return real


def _fake_graph_classes(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    data = types.ModuleType("torch_geometric.data.data")
    storage = types.ModuleType("torch_geometric.data.storage")

    class GlobalStorage:
        pass

    class Data:
        def __init__(self, **tensors: Any) -> None:
            self._edge_attr_cls = DataEdgeAttr
            self._store = GlobalStorage()
            self._store._mapping = tensors  # type: ignore[attr-defined]
            self._store._parent = self  # type: ignore[attr-defined]

    class DataEdgeAttr:
        pass

    for module, kinds in ((data, (Data, DataEdgeAttr)), (storage, (GlobalStorage,))):
        for kind in kinds:
            kind.__module__, kind.__qualname__ = module.__name__, kind.__name__
            setattr(module, kind.__name__, kind)
    for name in ("torch_geometric", "torch_geometric.data"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, data.__name__, data)
    monkeypatch.setitem(sys.modules, storage.__name__, storage)
    return data
