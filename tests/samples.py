"""Sample stores for tests, with values that identify their sample."""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.hallucination.samples.splits import Splits, assign_splits, write_splits
from clew.hallucination.traces.schema import EvaluationShape, evaluation_fields, id_fields, shaped
from clew.loading.splits import Shares
from clew.storage.arrow import is_list
from clew.storage.manifest import Manifest, read_manifest, write_manifest
from clew.storage.origin import describe_in_schema
from clew.storage.reader import ShardReader
from clew.storage.repair import add_shard
from clew.storage.writer import ShardWriter

LABELLED = [*id_fields(), pa.field("label", pa.float32()), pa.field("score", pa.float32())]


@dataclass(frozen=True, kw_only=True)
class SampleSizes:
    """The sizes of answers and heads; `signal` marks the hallucinated ones."""

    layers: int
    heads: int
    dim: int
    features: int
    max_tokens: int
    signal: float = 0.0
    spans: bool = False
    places: bool = False
    draws: int = 3
    eigenvalues: int = 25


def made_once(make: Callable[..., Path]) -> Callable[..., Path]:
    """Decorates `make(folder, **options)`: each process makes a folder once per options, and then
    copies it, unless a test has replaced the functions that the values follow from."""
    made: dict[str, Path] = {}

    @functools.wraps(make)
    def copy(folder: Path, **options: Any) -> Path:
        if (label, question_id, sequence_of, graph_of, answer_of, heads_of) != _VALUES:
            return make(folder, **options)
        wanted = repr(sorted(options.items()))
        if wanted not in made:
            place = Path(tempfile.mkdtemp(prefix="clew-samples-"))
            atexit.register(shutil.rmtree, place, ignore_errors=True)
            made[wanted] = make(place / "made", **options)
        return Path(shutil.copytree(made[wanted], folder, dirs_exist_ok=True))

    return copy


@made_once
def write_samples(
    folder: Path,
    *,
    shards: int = 4,
    rows: int = 25,
    layers: int = 3,
    dim: int = 8,
    batch_rows: int = 10,
    graphs: bool = True,
    features: int = 5,
    max_tokens: int = 7,
    answers: bool = False,
    heads: bool = False,
    attention_heads: int = 2,
    signal: float = 0.0,
    spans: bool = False,
    places: bool = True,
    draws: int = 3,
    eigenvalues: int = 25,
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """A folder as `clew preprocess` writes it: sequences, graphs, splits.csv; answers and heads
    on request. `signal` is added to the values of answers and heads that are hallucinated; with
    `spans`, every token but the first of an answer has the label of the answer, and with `places`,
    both are known in characters."""
    write_sequences(folder / "sequences", shards, rows, layers, dim, batch_rows)
    if graphs:
        write_graphs(folder / "graphs", shards, rows, layers, features, max_tokens, batch_rows)
    sizes = SampleSizes(
        layers=layers,
        heads=attention_heads,
        dim=dim,
        features=features,
        max_tokens=max_tokens,
        signal=signal,
        spans=spans,
        places=places and spans,
        draws=draws,
        eigenvalues=eigenvalues,
    )
    if answers:
        write_answers(folder / "answers", shards, rows, batch_rows, sizes)
    if heads:
        write_heads(folder / "heads", shards, rows, batch_rows, sizes)
    for store in folder.iterdir() if settings else ():
        change_settings(store, dict(settings or {}))
    ids = np.arange(shards * rows)
    question_ids = [question_id(i) for i in ids]
    splits = assign_splits(question_ids, None, label(ids), shares=Shares())
    table = Splits(
        global_example_id=ids,
        question_id=pa.array(question_ids),
        split=splits,
        label=label(ids),
        score=1 - label(ids),
    )
    write_splits(folder / "splits.csv", table)
    return folder


def change_settings(store: Path, settings: dict[str, Any]) -> None:
    """Gives a store other settings, in its manifest and in its shards."""
    manifest = replace(read_manifest(store), settings=settings)
    write_manifest(store, manifest)
    for shard in manifest.shards:
        old = ShardReader(store / shard.file)
        batches = [old.record_batch(index) for index in range(old.num_record_batches)]
        old.path.unlink()
        schema = describe_in_schema(old.schema, manifest)
        writer = ShardWriter(store, shard.batch_number, schema, id_column="global_example_id")
        for batch in batches:
            writer.write(batch)
        add_shard(store, writer.finish())


def question_id(number: int) -> str:
    return f"question-{number}"


def label(ids: np.ndarray) -> np.ndarray:
    return (np.asarray(ids) % 3 == 0).astype(np.float32)


def sequence_of(number: int, layers: int, dim: int) -> np.ndarray:
    """The values of one sample follow from its index."""
    random = np.random.default_rng(number)
    return random.standard_normal((layers, dim)).astype(np.float16)


def graph_of(number: int, layers: int, features: int, max_tokens: int) -> dict[str, np.ndarray]:
    """Causal graphs of all layers; edges number the nodes of the whole sample."""
    random = np.random.default_rng(number)
    tokens = int(random.integers(1, max_tokens + 1))
    full = [(s, t) for t in range(tokens) for s in range(t + 1)]
    kept = [[pair for pair in full if random.random() < 0.6] for _ in range(layers)]
    pairs = [(s + at * tokens, t + at * tokens) for at, some in enumerate(kept) for s, t in some]
    edges = np.array(pairs, np.int32).reshape(-1, 2)
    return {
        "nodes": random.standard_normal((layers * tokens, features)).astype(np.float16),
        "edge_source": edges[:, 0],
        "edge_target": edges[:, 1],
        "edge_attr": random.random((len(edges), 1)).astype(np.float16),
        "node_counts": np.full(layers, tokens, np.int32),
        "edge_counts": np.array([len(some) for some in kept], np.int32),
    }


def answer_of(number: int, sizes: SampleSizes) -> dict[str, Any]:
    """All fields of answers/ for one sample; every twelfth answer is empty."""
    random = np.random.default_rng(number)
    whole = int(random.integers(1, sizes.max_tokens + 1))  # as in its graph
    tokens = 0 if number % 12 == 11 else max(1, whole - number % 2)
    by_head, by_node = (sizes.layers, sizes.heads), (sizes.layers, sizes.features)

    def draw(*shape: int) -> np.ndarray:
        return random.standard_normal(shape) + sizes.signal * label(number)

    labels = [-1, *[int(label(number))] * (tokens - 1)][:tokens]
    ends = [len(f"It is {number}.") * count // tokens for count in range(1, tokens + 1)]
    spans = list(zip([0, *ends], ends, labels, strict=False))
    return {
        **({"token_labels": labels} if sizes.spans else {}),
        **({"answer_spans": spans, "token_ends": ends} if sizes.places else {}),
        "question": f"What is {number}?",
        "category": ("capital", "currency", "river", None)[number % 4],
        "accepted_answers": [f"answer {number}", str(number)],
        "answer": f"It is {number}." if tokens else "",
        "stop_reason": "sentence",
        "prompt_length": whole - tokens,
        "token_logprobs": -np.abs(draw(tokens)),
        "token_entropies": np.abs(draw(tokens)),
        "lookback": draw(*by_head),
        "log_diagonal_all": draw(*by_head),
        "log_diagonal_answer": draw(*by_head),
        "laplacian_top": -np.sort(-draw(*by_head, sizes.eigenvalues), axis=-1),
        "laplacian_answer": draw(*by_head),
        "node_mean": draw(*by_node),
        "node_max": draw(*by_node),
        "node_prompt": draw(*by_node),
        "state_mean": draw(sizes.layers, sizes.dim),
        "samples": [f"It is {number + i % (1 + number % 3)}." for i in range(sizes.draws)],
        "p_true": 1 / (1 + np.exp(draw(3))),
        "contrast_true": draw(2, sizes.dim),
        "contrast_false": -draw(2, sizes.dim),
        "entailment": np.maximum(
            np.eye(sizes.draws), np.clip(0.5 - 0.2 * draw(sizes.draws, sizes.draws), 0, 1)
        ),
    }


def heads_of(number: int, sizes: SampleSizes) -> dict[str, Any]:
    """The graph over all heads of one sample, with a prompt of one token."""
    random = np.random.default_rng(number)
    tokens, width = int(random.integers(1, sizes.max_tokens + 1)), sizes.layers * sizes.heads
    pairs = [(s, t) for t in range(1, tokens) for s in range(t) if random.random() < 0.6]
    edges = np.array(pairs, np.int32).reshape(-1, 2)
    marks = np.stack([edges[:, 0] < 1, edges[:, 0] >= 1], axis=1)
    attention = random.random((len(edges), width)) + sizes.signal * label(number)
    return {
        "nodes": random.random((tokens, width)) + sizes.signal * label(number),
        "answer_start": 1,
        "edge_source": edges[:, 0],
        "edge_target": edges[:, 1],
        "edge_attr": np.concatenate([attention, marks], axis=1),
    }


def write_answers(store: Path, shards: int, rows: int, batch_rows: int, sizes: SampleSizes) -> Path:
    def fixed(name: str, *shape: int) -> pa.Field:
        kind = pa.float16()
        for size in reversed(shape):
            kind = pa.list_(kind, size)
        return shaped(name, kind, *shape)

    by_head, by_node = (sizes.layers, sizes.heads), (sizes.layers, sizes.features)
    places = [
        shaped("answer_spans", pa.list_(pa.list_(pa.int32(), 3)), "spans", 3),
        shaped("token_ends", pa.list_(pa.int32()), "answer"),
    ]
    fields = [
        *(pa.field(name, pa.string()) for name in ("question", "category")),
        pa.field("accepted_answers", pa.list_(pa.string())),
        *(pa.field(name, pa.string()) for name in ("answer", "stop_reason")),
        pa.field("prompt_length", pa.int32()),
        *(
            shaped(f"token_{name}", pa.list_(pa.float32()), "answer")
            for name in ("logprobs", "entropies")
        ),
        *([shaped("token_labels", pa.list_(pa.int8()), "answer")] if sizes.spans else []),
        *(places if sizes.places else []),
        *(
            fixed(name, *by_head)
            for name in ("lookback", "log_diagonal_all", "log_diagonal_answer")
        ),
        fixed("laplacian_top", *by_head, sizes.eigenvalues),
        fixed("laplacian_answer", *by_head),
        *(fixed(name, *by_node) for name in ("node_mean", "node_max", "node_prompt")),
        fixed("state_mean", sizes.layers, sizes.dim),
        pa.field("samples", pa.list_(pa.string())),
        *evaluation_fields(EvaluationShape(phrasings=3, layers=2, draws=sizes.draws), sizes.dim),
    ]
    return _write_each(store, "answers", fields, answer_of, shards, rows, batch_rows, sizes)


def write_heads(store: Path, shards: int, rows: int, batch_rows: int, sizes: SampleSizes) -> Path:
    width = sizes.layers * sizes.heads
    fields = [
        shaped("nodes", pa.list_(pa.list_(pa.float16(), width)), "tokens", width),
        pa.field("answer_start", pa.int32()),
        shaped("edge_source", pa.list_(pa.int32()), "edges"),
        shaped("edge_target", pa.list_(pa.int32()), "edges"),
        shaped("edge_attr", pa.list_(pa.list_(pa.float16(), width + 2)), "edges", width + 2),
    ]
    return _write_each(store, "heads", fields, heads_of, shards, rows, batch_rows, sizes)


def _write_each(store, kind, fields, make, shards, rows, batch_rows, sizes) -> Path:  # type: ignore[no-untyped-def]
    """Rows that are created one by one."""

    def columns(ids: np.ndarray) -> dict[str, pa.Array]:
        made = [make(int(i), sizes) for i in ids]
        return {
            field.name: _of_values([m[field.name] for m in made], field.type) for field in fields
        }

    return _write(store, kind, pa.schema([*LABELLED, *fields]), columns, shards, rows, batch_rows)


def _of_values(values: list[Any], kind: pa.DataType) -> pa.Array:
    inner = kind
    while is_list(inner):
        inner = inner.value_type
    if pa.types.is_floating(inner):
        dtype = inner.to_pandas_dtype()
        values = [np.asarray(value, dtype).tolist() for value in values]
    return pa.array(values, kind)


def write_sequences(
    store: Path, shards: int, rows: int, layers: int, dim: int, batch_rows: int
) -> Path:
    kind = pa.list_(pa.list_(pa.float16(), dim), layers)
    schema = pa.schema([*LABELLED, shaped("sequence", kind, layers, dim)])

    def columns(ids: np.ndarray) -> dict[str, pa.Array]:
        values = np.concatenate([sequence_of(i, layers, dim).reshape(-1) for i in ids])
        return {
            "sequence": pa.FixedSizeListArray.from_arrays(
                pa.FixedSizeListArray.from_arrays(pa.array(values), dim), layers
            )
        }

    return _write(store, "sequences", schema, columns, shards, rows, batch_rows)


def write_graphs(
    store: Path,
    shards: int,
    rows: int,
    layers: int,
    features: int,
    max_tokens: int,
    batch_rows: int,
) -> Path:
    counts = pa.list_(pa.int32(), layers)
    schema = pa.schema(
        [
            *LABELLED,
            shaped("nodes", pa.list_(pa.list_(pa.float16(), features)), "nodes", features),
            shaped("edge_source", pa.list_(pa.int32()), "edges"),
            shaped("edge_target", pa.list_(pa.int32()), "edges"),
            shaped("node_counts", counts, layers),
            shaped("edge_counts", counts, layers),
            shaped("edge_attr", pa.list_(pa.list_(pa.float16(), 1)), "edges", 1),
        ]
    )

    def columns(ids: np.ndarray) -> dict[str, pa.Array]:
        graphs = [graph_of(i, layers, features, max_tokens) for i in ids]
        return {
            name: _nested([g[name] for g in graphs], schema.field(name).type) for name in graphs[0]
        }

    return _write(store, "graphs", schema, columns, shards, rows, batch_rows)


def _nested(arrays: list[np.ndarray], kind: pa.DataType) -> pa.Array:
    values = pa.array(np.concatenate([array.reshape(-1) for array in arrays]))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, kind.list_size)
    if pa.types.is_fixed_size_list(kind.value_type):
        values = pa.FixedSizeListArray.from_arrays(values, kind.value_type.list_size)
    offsets = np.cumsum([0, *(len(array) for array in arrays)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _write(store, kind, schema, columns, shards, rows, batch_rows) -> Path:  # type: ignore[no-untyped-def]
    store.mkdir(parents=True)
    manifest = Manifest(
        kind=kind,
        settings={"source": {"store": "a test"}},
        rows_per_shard=rows,
        planned_rows=shards * rows,
    )
    write_manifest(store, manifest)
    schema = describe_in_schema(schema, manifest)
    for number in range(shards):
        writer = ShardWriter(store, number, schema, id_column="global_example_id")
        for start in range(0, rows, batch_rows):
            ids = number * rows + np.arange(start, min(start + batch_rows, rows))
            given = {
                "global_example_id": pa.array(ids),
                "example_id": pa.array(ids - number * rows, pa.int32()),
                "batch_number": pa.array(np.full(len(ids), number), pa.int32()),
                "question_id": pa.array([question_id(i) for i in ids]),
                "label": pa.array(label(ids)),
                "score": pa.array(1 - label(ids)),
                **columns(ids),
            }
            arrays = [given[name].cast(schema.field(name).type) for name in schema.names]
            writer.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
        add_shard(store, writer.finish())
    return store


_VALUES = (label, question_id, sequence_of, graph_of, answer_of, heads_of)
