"""The fields of answers that have just passed through the model: what `clew extract` and `clew
preprocess` would store of them, rounded where they round, computed on the device for all answers at
once."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Float16, Int
from torch import Tensor

from clew.base.commands import select
from clew.base.errors import InputError
from clew.hallucination.llm.packing import to_device
from clew.hallucination.samples.batches import HEAD_COLUMNS, lay_grids, lay_heads
from clew.hallucination.samples.columns import build_rows
from clew.hallucination.samples.datasets import SampleKind
from clew.hallucination.samples.graph_batches import GRAPH_COLUMNS, GraphParts, lay_flat
from clew.hallucination.samples.source import (
    MAPS,
    NODE_TOKENS,
    Kind,
    SampleShape,
    array_columns,
    lengths,
)
from clew.hallucination.traces.compact import (
    Reduced,
    average,
    largest,
    reduced_columns,
    to_float16,
    to_float32,
)
from clew.hallucination.traces.schema import (
    DIAGONALS,
    EVALUATION,
    TraceShape,
    build_record_batch,
    full_fields,
    id_fields,
    reduced_fields,
    text_fields,
)
from clew.loading.buffers import BufferPool
from clew.storage.reader import read_value

SPLIT = "live"
_CUT_OFF = "the answer was cut off at its maximum length, so what it would have said is unknown"
_COLUMN_OF = {
    "sequence": "last_hidden",
    "state_mean": "answer_hidden",
    "lookback": "lookback",
    "log_diagonal_all": "attention_log_diagonal",
    "log_diagonal_answer": "attention_log_diagonal",
    "laplacian_top": "laplacian_diagonal",
    "laplacian_answer": "laplacian_diagonal",
    "node_mean": "nodes",
    "node_max": "nodes",
    "node_prompt": "nodes",
    NODE_TOKENS: "nodes",
}
_FIXED = ("last_hidden", "answer_hidden", "lookback")
_SAMPLE_COLUMNS: dict[SampleKind, tuple[str, ...]] = {
    "sequences": ("last_hidden",),
    "graphs": ("last_hidden", "nodes", "edges"),
    "grids": ("nodes",),
    "heads": (),
}
_ALWAYS = ("question", "answer", "stop_reason", "samples", "token_logprobs", "token_entropies")


def needed_columns(names: Collection[str], samples: SampleKind | None = None) -> frozenset[str]:
    """The trace columns to record for these fields, and for a network on this kind of samples."""
    columns = {_COLUMN_OF[name] for name in names if name in _COLUMN_OF}
    return frozenset(columns.union(_SAMPLE_COLUMNS[samples] if samples else ()))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer to score: the token ids of its prompt and of the answer, and their texts. `problem`
    says why it cannot be scored, if so; `name` seeds the answers that are drawn for it. The rest is
    there once it has passed through the model: numbers of its tokens, and the texts of other
    answers to its question (`samples`), if any were drawn."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    question: str = ""
    text: str = ""
    stop_reason: str = "end"
    name: str = ""
    problem: str | None = None
    logprobs: Sequence[float] = ()
    entropies: Sequence[float] = ()
    samples: Sequence[str] | None = None

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.tokens)

    @property
    def why_unavailable(self) -> str | None:
        """Why it is not checked, whatever a detector says of it."""
        return self.problem or why_unavailable(self.tokens, self.text, self.stop_reason)


def why_unavailable(tokens: Sequence[int], text: str, stop_reason: str) -> str | None:
    """Why an answer is not checked, whatever a detector says of it."""
    if stop_reason == "canceled":
        return "the answer was canceled before its end"
    if not tokens or not text.strip():
        return "the answer is empty"
    return _CUT_OFF if stop_reason == "length" else None


class LiveFeatures:
    """The features of some answers, as methods read them: one split, "live". `read` returns new
    float32 tensors on the device of the record, and ragged fields as tensors on the CPU.
    `pass_maps` returns the full attention maps of sequences, for networks that read them;
    `evaluate` returns what the model says about answers."""

    def __init__(
        self,
        record: Reduced,
        answers: Sequence[Answer],
        shape: SampleShape,
        *,
        pass_maps: Callable[[Sequence[Sequence[int]]], np.ndarray] | None = None,
        evaluate: Callable[[Sequence[Answer]], Mapping[str, np.ndarray]] | None = None,
    ) -> None:
        self.record, self.answers, self.shape = record, answers, shape
        self._pass_maps, self._evaluate = pass_maps, evaluate
        self._made: dict[str, Tensor] = {}
        self._ragged: dict[str, tuple[Tensor, ...]] = {}
        device = record.last_hidden.device
        sizes = [[answer.length, len(answer.prompt)] for answer in answers]
        self._lengths, self._prompts = to_device(sizes, device).T
        self._longest = max(length for length, _ in sizes)

    @property
    def layers(self) -> int:
        return self.shape.source.layers

    @property
    def without_attention(self) -> tuple[int, ...]:
        return self.shape.source.without_attention

    @property
    def labels(self) -> dict[str, np.ndarray]:
        """Unknown; there are as many as answers."""
        return {SPLIT: np.zeros(len(self.answers), np.int8)}

    @property
    def stop_reasons(self) -> list[str]:
        return [answer.stop_reason for answer in self.answers]

    @cached_property
    def fields(self) -> frozenset[str]:
        recorded = {name for name, column in _COLUMN_OF.items() if self._has(column)}
        return frozenset(recorded.union(_ALWAYS, EVALUATION if self._evaluate else ()))

    def read(self, field: str, split: str, *, layer: int | None = None) -> Any:
        """See `AnswerFeatures.read`."""
        if split != SPLIT or field not in self.fields:
            known = ", ".join(sorted(self.fields))
            raise InputError(f'there is no field "{field}" in the split "{split}", only {known}.')
        if field in _ALWAYS:
            return self._read_plain(field)
        if field == NODE_TOKENS:
            return self._read_token_nodes(layer)
        if field in EVALUATION and field not in self._made:
            self._made |= self._ask()
        if field not in self._made:
            self._made[field] = self._make(field)
        values = self._made[field]
        return to_float32(values if layer is None else values[:, layer])

    def batch(self, kind: SampleKind) -> Any:
        """The batch that a network on this kind of samples reads, on the device of the record."""
        device = self.record.last_hidden.device
        return {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in self._build_batch(kind).items()
        }

    def token_nodes(self, layers: Sequence[int]) -> Float[Tensor, "tokens layers node_dim"]:
        """The projected states of the tokens of all answers, answer by answer, in some layers."""
        nodes = self._whole("nodes")[:, list(layers)].transpose(1, 2)
        return nodes[self._is_answer].float()

    @cached_property
    def unusable(self) -> dict[int, str]:
        """The answers whose record contains NaN or infinity, which no method can score, with the
        reason."""
        columns = [name for name in sorted({*_COLUMN_OF.values()}) if self._has(name)]
        if not columns:
            return {}
        # The sum of values is not finite if one of them is not.
        totals = [getattr(self.record, name).sum(dtype=torch.float32) for name in columns]
        if torch.stack(totals).isfinite().all():
            return {}
        sums = [_sum_answers(self._whole(name)) for name in columns]
        broken = (~torch.stack(sums).isfinite()).cpu()
        return {
            row: f"its {columns[column]} contains NaN or infinity"
            for column, row in broken.nonzero().flip(0).tolist()
        }

    def drop_unusable(self) -> "LiveFeatures":
        """The same features with zeros for unusable answers, so that the others can be scored."""
        if not self.unusable:
            return self
        cleaned = {
            field.name: getattr(self.record, field.name).nan_to_num(0, 0, 0)
            for field in fields(Reduced)
        }
        record = replace(self.record, **cleaned)
        return LiveFeatures(
            record, self.answers, self.shape, pass_maps=self._pass_maps, evaluate=self._evaluate
        )

    def _build_batch(self, kind: SampleKind) -> dict[str, Any]:
        """In the same steps as a store of traces becomes samples, and samples become batches; on
        the CPU, but sequences stay on their device."""
        shape, sequences = self.shape, {"sequence": to_float16(self.record.last_hidden)}
        if kind == "sequences":
            return sequences
        traces = self._build_traces(kind)
        if kind == "heads":
            columns = _read_columns(_build("heads", traces, shape), HEAD_COLUMNS)
            return lay_heads(columns, BufferPool())
        if kind == "grids":
            return _build_grids(traces, shape)
        columns = _read_columns(_build("graphs", traces, shape), GRAPH_COLUMNS)
        parts = [
            GraphParts(
                nodes=nodes,
                edges=(source, target),
                edge_attr=attr,
                node_counts=node_counts[0],
                edge_counts=edge_counts[0],
            )
            for nodes, source, target, attr, node_counts, edge_counts in zip(
                *(columns[name] for name in GRAPH_COLUMNS), strict=True
            )
        ]
        return lay_flat(parts, shape.top_k, BufferPool()) | sequences

    def _build_traces(self, kind: SampleKind) -> pa.RecordBatch:
        """The traces as a store holds them, with the columns that this kind of samples needs."""
        source = self.shape.source
        sizes = select(TraceShape, source, heads=source.heads or 0)
        names = {"grids": {"nodes"}, "graphs": {*array_columns(source)}}.get(kind, set())
        tokens = [[*answer.prompt, *answer.tokens] for answer in self.answers]
        columns: dict[str, Any] = {
            "tokens": tokens,
            "prompt_length": [len(answer.prompt) for answer in self.answers],
            **(reduced_columns(self.record, [*map(len, tokens)]) if names else {}),
        }
        rows = list(range(len(tokens)))
        columns |= {field.name: rows for field in id_fields() if field.name != "question_id"}
        if kind == "heads" or (kind == "graphs" and self.shape.from_maps):
            assert self._pass_maps is not None  # whoever scores with such a network gives it
            columns[MAPS] = self._pass_maps(tokens)
        fields = [*id_fields(), *text_fields(), *reduced_fields(sizes), *full_fields(sizes)]
        known = {*columns} - {*(field.name for field in reduced_fields(sizes))} | names
        counts = [len(one) for one in tokens]
        schema = pa.schema([f for f in fields if f.name in known or f.name == "question_id"])
        return build_record_batch(schema, columns, counts, [0] * len(counts))

    def _ask(self) -> dict[str, Tensor]:
        assert self._evaluate is not None
        device, found = self.record.last_hidden.device, self._evaluate(self.answers)
        return {name: torch.from_numpy(values).to(device) for name, values in found.items()}

    def _has(self, column: str) -> bool:
        return getattr(self.record, column).numel() > 0

    def _read_plain(self, field: str) -> list[Any]:
        if field.startswith("token_"):
            if field not in self._ragged:
                self._ragged[field] = self._split_tokens(field.removeprefix("token_"))
            return [*self._ragged[field]]
        name = "text" if field == "answer" else field
        return [getattr(answer, name) for answer in self.answers]

    def _split_tokens(self, name: str) -> tuple[Tensor, ...]:
        """At once: a tensor for each answer would take many times as long."""
        numbers = [getattr(answer, name) for answer in self.answers]
        flat = torch.tensor([*chain(*numbers)], dtype=torch.float32)
        return flat.split([*map(len, numbers)])

    def _read_token_nodes(self, layer: int | None) -> list[Tensor]:
        """The nodes of each answer's tokens, on the device."""
        nodes = self._whole("nodes").transpose(1, 2)
        nodes = nodes if layer is None else nodes[:, :, layer]
        return [
            row[len(answer.prompt) : answer.length].float()
            for row, answer in zip(nodes, self.answers, strict=True)
        ]

    def _make(self, field: str) -> Float16[Tensor, "rows layers ..."]:
        column = _COLUMN_OF[field]
        values = self._whole(column)
        if column in _FIXED:
            return values
        if field == "laplacian_top":
            return largest(values, self._used, self.shape.source.eigenvalues)
        if field == "node_prompt":
            return self._prompt_nodes(values)
        if field == "node_max":
            return self._highest(values)
        tokens = self._used if field == "log_diagonal_all" else self._is_answer
        return average(values, tokens)

    def _whole(self, column: str) -> Float16[Tensor, "rows layers ..."]:
        """A column of the record; of tokens with their features, those of a diagonal are its
        heads, and zeros after each answer's own."""
        if column not in self._made:
            values = to_float16(getattr(self.record, column))
            if column == "nodes":
                values = values[..., : self.shape.features]
            self._made[column] = values.mT if column in DIAGONALS else values
        return self._made[column]

    @cached_property
    def _used(self) -> Bool[Tensor, "rows tokens"]:
        return self._places < self._lengths[:, None]

    @cached_property
    def _is_answer(self) -> Bool[Tensor, "rows tokens"]:
        return self._used & (self._places >= self._prompts[:, None])

    @cached_property
    def _places(self) -> Int[Tensor, " tokens"]:
        return torch.arange(self._longest, device=self._lengths.device)

    def _prompt_nodes(self, values: Float16[Tensor, "rows layers tokens features"]) -> Tensor:
        last = (self._prompts - 1).clamp(min=0)[:, None, None, None]
        found = values.gather(2, last.expand(-1, self.layers, 1, values.shape[3]))[:, :, 0]
        return torch.where((self._prompts > 0)[:, None, None], found, 0)

    def _highest(self, values: Float16[Tensor, "rows layers tokens features"]) -> Tensor:
        answer = self._is_answer[:, None, :, None]
        highest = values.masked_fill(~answer, -torch.inf).amax(2)
        return torch.where(self._is_answer.any(1)[:, None, None], highest, 0)


def _sum_answers(values: Float16[Tensor, "rows layers ..."]) -> Float[Tensor, " rows"]:
    return values.sum(dim=tuple(range(1, values.dim())), dtype=torch.float32)


def _build_grids(traces: pa.RecordBatch, shape: SampleShape) -> dict[str, Any]:
    size, tokens = shape.source.node_dim, lengths(traces.column("tokens"))
    rows = (read_value(traces.column("nodes"), row) for row in range(len(tokens)))
    nodes = [row.reshape(-1, size)[:, : shape.features] for row in rows]
    return lay_grids(nodes, tokens, BufferPool())


def _build(kind: Kind, traces: pa.RecordBatch, shape: SampleShape) -> pa.RecordBatch:
    unknown = np.zeros(traces.num_rows, np.float32)
    return build_rows(kind, traces, unknown, unknown, shape)


def _read_columns(samples: pa.RecordBatch, names: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """The arrays of every row, shaped as a reader of the files shapes them."""
    return {name: _read_column(samples.column(name)) for name in names}


def _read_column(column: pa.Array) -> list[np.ndarray]:
    if not pa.types.is_nested(column.type):
        return list(column.to_numpy().reshape(-1, 1))
    rows = [read_value(column, row) for row in range(len(column))]
    if pa.types.is_fixed_size_list(column.type):
        return [row.reshape(1, -1) for row in rows]
    inner = column.type.value_type
    if pa.types.is_fixed_size_list(inner):
        return [row.reshape(-1, inner.list_size) for row in rows]
    return rows
