"""Samples of legacy files as rows of a store: traces with reduced fields computed as in capture,
sequences over layers, and attention graphs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float
from torch import Tensor

from clew.base.errors import StoreError
from clew.base.texts import shortened
from clew.hallucination.legacy.records import MAX_NOTES, NODE_DIM, MalformedRecordError
from clew.hallucination.traces.compact import (
    BASIS_NAME,
    Basis,
    Reduced,
    fit_basis,
    load_basis,
    reduce_heads,
    reduce_whole,
    reduced_columns,
    save_basis,
    to_float16,
)
from clew.hallucination.traces.schema import (
    ANSWER_HIDDEN,
    EIGENVALUES,
    LAPLACIAN_ANSWER,
    LOG_ANSWER,
    MOST_EIGENVALUES,
    Keep,
    TraceShape,
    build_record_batch,
    id_fields,
    shaped,
    trace_schema,
)
from clew.storage.manifest import Manifest
from clew.storage.reader import StoreReader

EDGES_PER_TOKEN = 16
# Principal components are stable with this many states; more only cost time.
_MAX_BASIS_TOKENS = 1024
_SIZES = {
    "traces": tuple(one.name for one in fields(TraceShape) if one.default is MISSING),
    "sequences": ("layers", "dim"),
    "graphs": ("layers", "features", "edge_features"),
}


def assign_ids(
    samples: Sequence[Mapping[str, Any]], batch_number: int, rows_per_shard: int
) -> list[dict[str, Any]]:
    """The ids of each row, which let it be found by its `global_example_id` alone. Those in the
    samples are kept if all are present, unique, and where a store with `rows_per_shard` rows per
    batch looks for them; otherwise they are renumbered."""
    first = batch_number * rows_per_shard
    names = ("example_id", "global_example_id", "question_id")
    found = [tuple(sample.get(name) for name in names) for sample in samples]
    examples = _usable_ids([ids[0] for ids in found], 0, rows_per_shard) or range(len(samples))
    numbers = _usable_ids([ids[1] for ids in found], first, rows_per_shard)
    numbers = numbers or [first + example for example in examples]
    return [
        {
            "global_example_id": number,
            "example_id": example,
            "batch_number": batch_number,
            "question_id": nameless_id(number) if question is None else question,
        }
        for (_, _, question), number, example in zip(found, numbers, examples, strict=True)
    ]


def nameless_id(global_example_id: int) -> str:
    """Splits and labels are keyed by the question's id, so a record without one gets its own."""
    return f"record_{global_example_id}"


def _usable_ids(values: list[Any], first: int, count: int) -> list[int] | None:
    usable = all(value is not None and first <= value < first + count for value in values)
    return values if usable and len(set(values)) == len(values) else None


class SampleFormat:
    """Turns sequences or graphs of given sizes into rows. `notes` collects what a reader of the
    store should know."""

    def __init__(self, kind: str, sizes: tuple[int, ...]) -> None:
        self.kind, self.sizes = kind, sizes
        self.notes: set[str] = set()
        columns = _sequence_fields(*sizes) if kind == "sequences" else _graph_fields(*sizes)
        self.schema = pa.schema([*id_fields(), pa.field("label", pa.float32()), *columns])

    @property
    def settings(self) -> dict[str, Any]:
        return {"shape": dict(zip(_SIZES[self.kind], self.sizes, strict=True))}

    def save(self, _store: Path) -> dict[str, str]:
        """Write what belongs to the whole store; returns the files with their SHA-256."""
        return {}

    def row(self, sample: Mapping[str, Any], ids: Mapping[str, Any]) -> pa.RecordBatch:
        """One row; raises MalformedRecordError if the sample does not fit the store."""
        if "reason" in sample:
            raise MalformedRecordError(sample["reason"])
        sizes = sizes_of(sample)
        if sizes != self.sizes:
            raise MalformedRecordError(_explain_sizes(self.kind, sizes, self.sizes))
        self._note(sample)
        return self._make_row(sample, ids)

    def _make_row(self, sample: Mapping[str, Any], ids: Mapping[str, Any]) -> pa.RecordBatch:
        columns = {**sample, **ids}
        arrays = [_fill_column(field.type, columns[field.name]) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _note(self, sample: Mapping[str, Any]) -> None:
        """A file cannot fill the manifest with notes."""
        self.notes |= {*sample.get("notes", ())[: max(0, MAX_NOTES - len(self.notes))]}
        arrays = (value for value in sample.values() if isinstance(value, np.ndarray))
        if any(array.dtype.kind == "f" and array.dtype.itemsize > 2 for array in arrays):
            self.notes.add("arrays that were wider than float16 are stored as float16")


class TraceFormat(SampleFormat):
    """Turns records of answers into rows."""

    def __init__(
        self,
        shape: TraceShape,
        keep: Keep,
        basis: Basis,
        *,
        answer_hidden: bool = True,
        eigenvalues: int = MOST_EIGENVALUES,
    ) -> None:
        self.kind, self.sizes = "traces", (shape.layers, shape.dim, shape.heads)
        self.notes = set()
        self.shape, self.keep, self.basis = shape, keep, basis
        self.answer_hidden, self.eigenvalues = answer_hidden, eigenvalues
        decoded = pa.field("tokens_decoded", pa.list_(pa.string()))
        schema = trace_schema(shape, keep, answer_hidden=answer_hidden, eigenvalues=eigenvalues)
        self.schema = schema.append(decoded)

    @classmethod
    def fit(
        cls, traces: Sequence[Mapping[str, Any]], sizes: tuple[int, ...], keep: Keep
    ) -> "TraceFormat":
        """With a basis fitted on those records, which have these sizes."""
        layers, dim, heads = sizes
        shape = TraceShape(
            layers=layers,
            dim=dim,
            heads=heads,
            node_dim=NODE_DIM,
            edges_per_token=EDGES_PER_TOKEN,
        )
        return cls(shape, keep, _fit_basis(traces, layers))

    @classmethod
    def open(cls, store: Path, manifest: Manifest) -> "TraceFormat":
        """The format of a store that was started earlier."""
        settings = manifest.settings
        shape = TraceShape(**settings["shape"])
        basis = load_basis(store, manifest.files.get(BASIS_NAME))
        if basis.components.shape != (shape.layers, shape.dim, shape.node_dim):
            raise StoreError(
                f"{BASIS_NAME} in {store} has the shape {list(basis.components.shape)}, which is "
                "not that of the traces: restore it from a backup, or convert the files again into "
                "another folder."
            )
        return cls(
            shape,
            settings.get("keep", "compact"),
            basis,
            answer_hidden=settings.get(ANSWER_HIDDEN, False),
            eigenvalues=settings.get(EIGENVALUES, 0),
        )

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "keep": self.keep,
            ANSWER_HIDDEN: self.answer_hidden,
            **({EIGENVALUES: self.eigenvalues} if self.eigenvalues else {}),
            "shape": self.shape.describe(),
        }

    def save(self, store: Path) -> dict[str, str]:
        sha256 = save_basis(store, self.basis)
        self.basis = load_basis(store, sha256)
        return {BASIS_NAME: sha256}

    def _make_row(self, sample: Mapping[str, Any], ids: Mapping[str, Any]) -> pa.RecordBatch:
        texts = ("question", "accepted_answers", "answer", "prompt_length", "tokens")
        values = {name: sample[name] for name in (*texts, "tokens_decoded")} | {**ids}
        columns = {name: [value] for name, value in values.items()} | self._array_columns(sample)
        tokens = len(sample["tokens"])
        return build_record_batch(
            self.schema, columns, [tokens], [tokens - (sample["prompt_length"] or 0)]
        )

    def _array_columns(self, trace: Mapping[str, Any]) -> dict[str, Any]:
        reduced, by_head = _reduce(trace, self.shape, self.basis), None
        tokens = [len(trace["tokens"])]
        if self.eigenvalues:
            prompts = [trace["prompt_length"] or 0]
            by_head = reduce_heads(reduced, tokens, prompts, self.eigenvalues)
        columns: dict[str, Any] = reduced_columns(reduced, tokens, by_head)
        if trace["prompt_length"] is None:
            # Meaningless without the boundary between prompt and answer.
            for name in ("lookback", ANSWER_HIDDEN, LOG_ANSWER, LAPLACIAN_ANSWER):
                columns.pop(name, None)
        if self.keep == "full":
            columns |= {name: as_float16(trace[name]) for name in ("hidden_states", "attentions")}
        return columns


def fit_format(kind: str, samples: Sequence[Mapping[str, Any]], keep: Keep) -> SampleFormat:
    """The format for the sizes that most samples have; raises MalformedRecordError if no sample can
    be used."""
    usable = [sample for sample in samples if "reason" not in sample]
    if not usable:
        raise MalformedRecordError(samples[0]["reason"])
    sizes, _ = Counter(map(sizes_of, usable)).most_common(1)[0]
    if kind != "traces":
        return SampleFormat(kind, sizes)
    return TraceFormat.fit([t for t in usable if sizes_of(t) == sizes], sizes, keep)


def open_format(store: Path, manifest: Manifest) -> SampleFormat:
    """The format of a store that was started earlier; raises StoreError if its settings are not
    those of a conversion, or its shards have other columns."""
    kind, sizes = manifest.kind, manifest.setting("shape")
    if sizes.keys() != {*_SIZES[kind]}:
        raise StoreError(
            f'"settings.shape" of {store} is {shortened(sizes)}, but it must contain '
            f"{', '.join(_SIZES[kind])}: restore manifest.json from a backup, or convert again "
            "into another folder."
        )
    if kind == "traces":
        form: SampleFormat = TraceFormat.open(store, manifest)
    else:
        form = SampleFormat(kind, tuple(sizes[name] for name in _SIZES[kind]))
    reader = StoreReader(store)
    for entry in reader.shards[:1]:
        if not reader.open(entry).schema.equals(form.schema):
            raise StoreError(
                f"{entry.file} in {store} has other columns than the settings in the manifest say: "
                "convert the files again into another folder."
            )
    return form


def sizes_of(sample: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers, dim and heads; layers and dim; or layers, features per node and per edge."""
    if "hidden_states" in sample:
        layers, _, dim = sample["hidden_states"].shape
        return layers, dim, sample["attentions"].shape[1]
    if "sequence" in sample:
        return tuple(sample["sequence"].shape)
    return len(sample["node_counts"]), sample["nodes"].shape[1], sample["edge_attr"].shape[1]


def _explain_sizes(kind: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    if kind == "sequences":
        return f"its sequence has shape {list(found)}, the store has {list(wanted)}"
    text = "it has {} layers, {} features per node and {} per edge"
    if kind == "traces":
        text = "it has {} layers, dim {} and {} heads"
    return text.format(*found) + ", the store has {}, {} and {}".format(*wanted)


def _sequence_fields(layers: int, dim: int) -> list[pa.Field]:
    kind = pa.list_(pa.list_(pa.float16(), dim), layers)
    return [shaped("sequence", kind, layers, dim)]


def _graph_fields(layers: int, features: int, edge_features: int) -> list[pa.Field]:
    node, edge, count = pa.list_(pa.float16(), features), pa.int32(), pa.list_(pa.int32(), layers)
    found = [
        shaped("nodes", pa.list_(node), "nodes", features),
        shaped("edge_source", pa.list_(edge), "edges"),
        shaped("edge_target", pa.list_(edge), "edges"),
        shaped("node_counts", count, layers),
        shaped("edge_counts", count, layers),
    ]
    if edge_features:
        attr = pa.list_(pa.list_(pa.float16(), edge_features))
        found.append(shaped("edge_attr", attr, "edges", edge_features))
    return found


def _fill_column(kind: pa.DataType, value: Any) -> pa.Array:
    """One row; if it is a (nested) list, it holds all of an array."""
    if not isinstance(value, np.ndarray):
        return pa.array([value], type=kind)
    kinds = [kind]
    while pa.types.is_list(kinds[-1]) or pa.types.is_fixed_size_list(kinds[-1]):
        kinds.append(kinds[-1].value_type)
    flat = (as_float16(value) if value.dtype.kind == "f" else value).reshape(-1)
    array = pa.array(flat, type=kinds[-1])
    for nested in reversed(kinds[:-1]):
        if pa.types.is_fixed_size_list(nested):
            array = pa.FixedSizeListArray.from_arrays(array, type=nested)
        else:
            array = pa.ListArray.from_arrays(pa.array([0, len(array)], pa.int32()), array)
    return array


def _fit_basis(traces: Sequence[Mapping[str, Any]], layers: int) -> Basis:
    """Fit the basis layer by layer, so that only one layer's states are converted to float32 at a
    time."""
    parts = [fit_basis([_sample_states(traces, layer)], NODE_DIM) for layer in range(layers)]
    return Basis(
        mean=torch.cat([part.mean for part in parts]),
        components=torch.cat([part.components for part in parts]),
    )


def _sample_states(traces: Sequence[Mapping[str, Any]], layer: int) -> Float[Tensor, "tokens dim"]:
    """Evenly spaced states of a layer, without those that contain NaN or infinity."""
    total = sum(len(trace["tokens"]) for trace in traces)
    step = -(-total // _MAX_BASIS_TOKENS)
    states = torch.cat([_as_float32(t["hidden_states"][layer][::step]) for t in traces])
    finite = states[states.isfinite().all(1)]
    return finite if len(finite) else torch.zeros_like(states[:1])


def _reduce(trace: Mapping[str, Any], shape: TraceShape, basis: Basis) -> Reduced:
    """What capture would have kept, had it seen these states and this attention."""
    tokens = len(trace["tokens"])
    prompt = tokens if trace["prompt_length"] is None else trace["prompt_length"]
    both = (map(_as_float32, trace[name]) for name in ("hidden_states", "attentions"))
    return reduce_whole(zip(*both, strict=True), prompt, basis, shape.edges_per_token)


def as_float16(array: np.ndarray) -> np.ndarray:
    """As the store holds it: values beyond the range of float16 are clamped, as in capture."""
    return array if array.dtype == np.float16 else to_float16(_as_float32(array)).numpy()


def _as_float32(array: np.ndarray) -> Tensor:
    """A copy; values beyond the range of float32 become infinite, without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(array.astype(np.float32))
