"""Old traces as rows of a `traces` store, with reduced fields computed as in capture."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float
from torch import Tensor

from clew.base.errors import InputError, StoreError
from clew.base.texts import shortened
from clew.hallucination.legacy.records import (
    LegacyTrace,
    MalformedRecordError,
    RowIds,
    add_note,
    parse_trace,
    to_float32,
)
from clew.hallucination.traces.basis import BASIS_NAME, Basis, fit_basis, load_basis, save_basis
from clew.hallucination.traces.compact import (
    CompactRecord,
    Reduced,
    Slots,
    reduced_columns,
    to_float16,
)
from clew.hallucination.traces.heads import reduce_heads
from clew.hallucination.traces.schema import (
    ANSWER_HIDDEN,
    EIGENVALUES,
    LAPLACIAN_ANSWER,
    LOG_ANSWER,
    MOST_EIGENVALUES,
    Keep,
    TraceShape,
    build_record_batch,
    trace_schema,
)
from clew.storage.manifest import read_manifest

# The defaults of `clew extract`, so that converted and captured traces look alike.
NODE_DIM = 64
EDGES_PER_TOKEN = 16
# Principal components are stable with this many states; more only cost time.
_MAX_BASIS_TOKENS = 1024

KNOWN_FIELDS = {
    *("hidden_states", "attentions", "tokens", "tokens_decoded", "generated_answer_clean"),
    *("question", "answer", "accepted_answers", "prompt_length"),
    *("question_id", "example_id", "global_example_id", "batch_number"),
}


class TraceFormat:
    """Turns records into rows. `notes` collects what a reader of the store should know."""

    kind = "traces"
    sizes: ClassVar[tuple[str, ...]] = tuple(field.name for field in fields(TraceShape))

    def __init__(
        self,
        shape: TraceShape,
        keep: Keep,
        basis: Basis,
        *,
        answer_hidden: bool = True,
        eigenvalues: int = MOST_EIGENVALUES,
    ) -> None:
        self.shape, self.keep, self.basis = shape, keep, basis
        self.answer_hidden, self.eigenvalues = answer_hidden, eigenvalues
        decoded = pa.field("tokens_decoded", pa.list_(pa.string()))
        schema = trace_schema(shape, keep, answer_hidden=answer_hidden, eigenvalues=eigenvalues)
        self.schema = schema.append(decoded)
        self.notes: set[str] = set()

    @classmethod
    def fit(cls, samples: Sequence[Any], keep: Keep) -> "TraceFormat":
        """The sizes that most records have, and a basis fitted on those records."""
        traces = [trace for trace in map(_try_parse, samples) if trace is not None]
        if not traces:
            parse_trace(samples[0])
        sizes, _ = Counter(trace.sizes for trace in traces).most_common(1)[0]
        layers, dim, heads = sizes
        shape = TraceShape(
            layers=layers,
            dim=dim,
            heads=heads,
            node_dim=NODE_DIM,
            edges_per_token=EDGES_PER_TOKEN,
        )
        return cls(shape, keep, _fit_basis([t for t in traces if t.sizes == sizes], layers))

    @classmethod
    def open(cls, store: Path, settings: Mapping[str, Any]) -> "TraceFormat":
        """The format of a store that was started earlier."""
        shape = TraceShape(**settings["shape"])
        basis = load_basis(store, read_manifest(store).files.get(BASIS_NAME))
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
            "shape": asdict(self.shape),
        }

    def save(self, store: Path) -> dict[str, str]:
        """Write what belongs to the whole store; returns the files with their SHA-256."""
        sha256 = save_basis(store, self.basis)
        self.basis = load_basis(store, sha256)
        return {BASIS_NAME: sha256}

    def row(self, record: Any, ids: RowIds) -> pa.RecordBatch:
        """One row; raises MalformedRecordError if the record does not fit the store."""
        trace = parse_trace(record)
        shape = self.shape
        if trace.sizes != (shape.layers, shape.dim, shape.heads):
            raise MalformedRecordError(
                "it has {} layers, dim {} and {} heads".format(*trace.sizes)
                + f", the store has {shape.layers}, {shape.dim} and {shape.heads}"
            )
        self._note(trace, record)
        columns = {**_text_columns(trace), **self._array_columns(trace)}
        columns |= {name: [value] for name, value in asdict(ids).items()}
        tokens = len(trace.tokens)
        return build_record_batch(
            self.schema, columns, [tokens], [tokens - (trace.prompt_length or 0)]
        )

    def _array_columns(self, trace: LegacyTrace) -> dict[str, Any]:
        reduced, by_head = _reduce(trace, self.shape, self.basis), None
        if self.eigenvalues:
            sizes = [len(trace.tokens)], [trace.prompt_length or 0]
            by_head = reduce_heads(reduced, *sizes, self.shape, self.eigenvalues)
        columns: dict[str, Any] = reduced_columns(reduced, by_head)
        if trace.prompt_length is None:
            # Meaningless without the boundary between prompt and answer.
            for name in ("lookback", ANSWER_HIDDEN, LOG_ANSWER, LAPLACIAN_ANSWER):
                columns.pop(name, None)
        if self.keep == "full":
            columns["hidden_states"] = as_float16(trace.hidden_states)
            columns["attentions"] = as_float16(trace.attentions)
        return columns

    def _note(self, trace: LegacyTrace, record: Mapping[str, Any]) -> None:
        for name in record.keys() - KNOWN_FIELDS:
            text = f"the field {shortened(name)} of the old records was not converted"
            add_note(self.notes, text)
        arrays = [*trace.hidden_states, *trace.attentions]
        if any(array.dtype.itemsize > 2 for array in arrays):
            self.notes.add("arrays that were wider than float16 are stored as float16")


def _try_parse(record: Any) -> LegacyTrace | None:
    try:
        return parse_trace(record)
    except InputError:
        return None


def _fit_basis(traces: Sequence[LegacyTrace], layers: int) -> Basis:
    """Fit the basis layer by layer, so that only one layer's states are converted to float32 at a
    time."""
    parts = [fit_basis([_sample_states(traces, layer)], NODE_DIM) for layer in range(layers)]
    return Basis(
        mean=torch.cat([part.mean for part in parts]),
        components=torch.cat([part.components for part in parts]),
    )


def _sample_states(traces: Sequence[LegacyTrace], layer: int) -> Float[Tensor, "tokens dim"]:
    """Evenly spaced states of a layer, without those that contain NaN or infinity."""
    total = sum(len(trace.tokens) for trace in traces)
    step = -(-total // _MAX_BASIS_TOKENS)
    states = torch.cat([_as_float32(t.hidden_states[layer][::step]) for t in traces])
    finite = states[states.isfinite().all(1)]
    return finite if len(finite) else torch.zeros_like(states[:1])


def _reduce(trace: LegacyTrace, shape: TraceShape, basis: Basis) -> Reduced:
    """What capture would have kept, had it seen these states and this attention."""
    tokens = len(trace.tokens)
    prompt = tokens if trace.prompt_length is None else trace.prompt_length
    slots = Slots(
        prefix=0,
        width=tokens,
        room=0,
        padding=torch.zeros(1, dtype=torch.long),
        prompt_end=torch.tensor([prompt]),
    )
    record = CompactRecord(shape, basis, slots, torch.float32)
    record.expect(torch.arange(1), 0, torch.ones(1, tokens, dtype=torch.bool))
    for layer in range(shape.layers):
        record.on_hidden(layer, _as_float32(trace.hidden_states[layer])[None])
        record.on_attention(layer, _as_float32(trace.attentions[layer])[None])
    return record.finish(torch.tensor([tokens]), torch.tensor([tokens - prompt]))


def _text_columns(trace: LegacyTrace) -> dict[str, Any]:
    names = ("question", "accepted_answers", "answer", "prompt_length", "tokens", "tokens_decoded")
    return {name: [getattr(trace, name)] for name in names}


def _as_float32(array: np.ndarray) -> Tensor:
    return torch.from_numpy(to_float32(array))


def as_float16(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The arrays of all layers, stacked, as the store holds them."""
    if all(array.dtype == np.float16 for array in arrays):
        return np.stack(arrays)
    return np.stack([to_float16(_as_float32(array)).numpy() for array in arrays])
